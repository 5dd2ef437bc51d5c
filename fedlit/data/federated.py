"""The data of a federation: the samples of each client, what is shared, and fast batches.

Images rest as uint8 tensors and become floats on the way into a batch: scaled to [0, 1], augmented,
normalised. Without random augmentation that happens once a round, and an epoch is one permutation
split into views. What does not fit, or is random by itself, is read sample by sample.
"""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from inspect import signature
from numbers import Integral
from os import PathLike, fspath
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch.utils.data import Dataset

from fedlit.augment import Augmentation
from fedlit.bounds import MOST, check_choice, check_count, check_kind, check_number, check_positive, check_share
from fedlit.data import sources
from fedlit.data.assignment import Assignment, Dealer
from fedlit.data.batches import Batches
from fedlit.data.client import Client, Samples
from fedlit.data.datasets import fetch
from fedlit.data.items import Roles
from fedlit.data.preprocessing import Inputs, measured_on_shared, normalisation, with_censored_copies
from fedlit.data.sources import ReadOptions
from fedlit.data.splits import MOST_CLASSES, Part, PublicPool, Splits, StackedSamples, set_apart, with_num_classes
from fedlit.notices import Notice
from fedlit.partition import IID, ByColumn, Partition
from fedlit.rng import derive

EMBEDDED = "fashion_sample"  # what there is if nothing else is asked for
COUNTS = {  # options that are whole numbers, and their range
    "num_clients": (1, 1_000_000),
    "batch_size": (1, MOST),
    "eval_batch_size": (1, MOST),
    "partition_seed": (0, 2**63 - 1),
    "unseen_clients": (0, MOST),
    "num_workers": (0, 1024),
    "image_size": (1, 100_000),
    "num_classes": (1, MOST_CLASSES),
}
LONGEST = 20  # characters of an option that a title has room for
T = TypeVar("T")


class FederatedData(LightningDataModule):
    """A data set dealt out to clients.

    Args:
        dataset: fashion_sample (embedded), mnist, fashion_mnist, cifar10, cifar100, cinic10; or the
            path of an `.npz` with train_images, train_labels, test_images, test_labels, of a table
            (`.csv`, `.parquet`), or of a folder of images, with a folder for each class, perhaps in
            `train` and `test`.
        root: Folder with `<dataset>.npz`, or where data sets are downloaded to.
        train_dataset: In place of `dataset`: any torch data set with items and a length, a data set of
            Hugging Face's, or a pandas frame. Items are pairs (input, target) or dicts, of anything
            that tensors can be made of; a target that is one whole number is a class.
        test_dataset: Its test set, of the same kind; else see `test_size`.
        num_clients: Clients in the federation.
        partition: How the training samples are dealt out; IID by default.
        partition_seed: Seed of the partition, apart from the seed of the training.
        validation: Where a client's own validation samples come from: held back from its training
            samples (`train`), the test set dealt out in the same setting (`test`), or a reserve of
            training samples dealt out (`reserve`).
        val_size: With `train`, the fraction in (0, 1) or number of samples held back per client;
            with `reserve`, the fraction of the training set that goes into the reserve.
        batch_size: Samples per training batch.
        client_batch_sizes: Another batch size for some clients, by client id.
        drop_last: Leave out a last batch that is smaller than `batch_size`. `single` leaves it out if it holds one
            sample only and is not the only batch of the epoch: a step on one sample is as large as one on
            `batch_size` of them, but follows noise. False keeps every batch.
        augmentation: Steps applied to each batch in turn; random ones only in training.
        mean: Per-channel mean on the [0, 1] scale to subtract; the data set's own by default. Inputs that are
            floats are taken as they are.
        std: Per-channel standard deviation to divide by; the data set's own by default.
        opt_out: Clients that share nothing: their fraction in [0, 1], or their ids.
        opt_out_samples: Fraction in [0, 1] of every other client's training samples that it does
            not share.
        unseen_clients: The last so many clients never train; the global model is evaluated on them, if there
            is one.
        public: A public pool without labels: a fraction in [0, 1) of the training set, or the data
            set's `valid` part.
        eval_batch_size: Samples per batch in evaluation.
        own_test: Deal the test set out in the same setting, beside validation samples from the
            training set: clients' models are evaluated there too (`own_test`), and no model is selected
            by it.
        target: Column of the target, or key of items that are dicts; by default target, label, labels
            or y, whichever is there.
        features: Columns or keys that are inputs; by default all others. One is given as it is, several
            of a table as float32 ``[D]``, of dicts as a dict.
        client: Column or key that names the client of a sample, for `partition: ByColumn`, which is then
            the default.
        test_size: Fraction in (0, 1) of all samples that becomes the test set where there is none.
        image_size: Pixels of a side that the images of a folder are resized to; by default they stay.
        in_memory: Whether all samples are held in memory, each read once, or read whenever they are asked
            for; `auto` reads those that differ from one reading to the next (a random transform), or
            take more than 4 GB. True freezes what is random.
        num_workers: Processes that read samples which are not in memory; 0 reads in the one that
            trains. Results are the same.
        collate_fn: Makes a batch, (input, target) or a dict, of a list of items, such as texts of different
            lengths; by default they are stacked.
        num_classes: How many classes there are, where samples do not show it: no class is above it, and some may have
            no samples. By default, the data set's own, or one more than the highest label. The command line gives it
            to networks that have a `num_classes`, unless they are given another.
        censor: Steps that make a censored copy of each sample that `opt_out_samples` withholds. Copies take part in
            the federation in place of the originals, with the same targets; what never leaves a client is trained
            on the originals. What is random in a copy is drawn once. Clients in `opt_out` share no copy either.
    """

    _splits: Splits | None = None
    _public_pool: PublicPool | None = None
    _assignment: Assignment | None = None
    _inputs: Inputs | None = None
    is_placeholder = False  # blank samples in place of data that are not there
    only_client: int | None = None  # the client of all samples, on a host of its own

    def __init__(
        self,
        dataset: str = EMBEDDED,
        root: str = "data",
        train_dataset: Dataset | None = None,
        test_dataset: Dataset | None = None,
        num_clients: int = 10,
        partition: Partition | None = None,
        partition_seed: int = 0,
        validation: Literal["train", "test", "reserve"] = "train",
        val_size: float | int = 0.1,
        batch_size: int = 32,
        client_batch_sizes: dict[int, int] | None = None,
        drop_last: bool | Literal["single"] = "single",
        augmentation: list[Augmentation] | None = None,
        mean: float | list[float] | None = None,
        std: float | list[float] | None = None,
        opt_out: float | list[int] = 0.0,
        opt_out_samples: float = 0.0,
        unseen_clients: int = 0,
        public: float | Literal["valid"] = 0.0,
        eval_batch_size: int = 256,
        own_test: bool = False,
        target: str | None = None,
        features: list[str] | None = None,
        client: str | None = None,
        test_size: float | None = None,
        image_size: int | None = None,
        in_memory: bool | Literal["auto"] = "auto",
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        num_classes: int | None = None,
        censor: list[Augmentation] | None = None,
    ) -> None:
        super().__init__()
        self.dataset = fspath(dataset) if isinstance(dataset, PathLike) else dataset
        self.root = root
        self.train_dataset = train_dataset
        self.test_dataset = test_dataset
        self.num_clients = num_clients
        self.unseen_clients = unseen_clients
        self.partition = partition or (IID() if client is None else ByColumn(client))
        self.partition_seed = partition_seed
        self.validation = validation
        self.val_size = val_size
        self.batch_size = batch_size
        self.client_batch_sizes = client_batch_sizes or {}
        self.drop_last = drop_last
        self.eval_batch_size = eval_batch_size
        self.augmentation = augmentation or []
        self.mean = mean
        self.std = std
        self.opt_out = opt_out
        self.opt_out_samples = opt_out_samples
        self.public = public
        self.own_test = own_test
        self.target = target
        self.features = features
        self.client_column = client
        self.test_size = test_size
        self.image_size = image_size
        self.in_memory = in_memory
        self.num_workers = num_workers
        self.collate_fn = collate_fn
        self.num_classes = num_classes
        self.censor = censor or []
        check_options(self)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "client" or (name in OPTIONS and self._assignment is not None):
            message = "fixed once the data are set up" if name != "client" else "a method of the data, and an option"
            raise AttributeError(f"`data.{name}` is {message}: make another {type(self).__name__}({name}=...).")
        super().__setattr__(name, value)

    @property
    def splits(self) -> Splits:
        """The data set, once `setup` has run; labels of the public pool are -1."""
        return _after_setup(self._splits)

    @property
    def images(self) -> Splits:
        """`splits`, of which `train_x`, `train_y`, `test_x` and `test_y` are tensors where samples are in memory."""
        return self.splits

    @property
    def public_pool(self) -> PublicPool:
        """The unlabelled public pool, once `setup` has run; empty unless `public` is set."""
        return _after_setup(self._public_pool)

    @property
    def assignment(self) -> Assignment:
        """The samples of each client, once `setup` has run; see `at_round` where they change from round to round."""
        return _after_setup(self._assignment)

    @property
    def inputs(self) -> Inputs:
        """The preprocessing of samples, once `setup` has run."""
        return _after_setup(self._inputs)

    @property
    def client_names(self) -> list[str] | None:
        """The names of the clients in the data, in the order of their numbers, where samples name their client."""
        return self._dealer.client_names

    def prepare_data(self) -> None:
        if self.train_dataset is None:
            fetch(self.dataset, self.root)  # downloads and caches once, on the first process

    def setup(self, stage: str | None = None) -> None:
        if self._assignment is not None:
            return
        whole = with_num_classes(self._read(), self.num_classes)
        public_seed = derive(self.partition_seed, "public")
        self._splits, self._public_pool, private = set_apart(whole, self.public, public_seed)
        self._dealer = Dealer(self, self._splits, private)
        assignment = self._dealer.assign(round=0)
        if self.censor:
            self._splits = with_censored_copies(self._splits, self.censor, self.partition_seed)
        if self._splits.measured:
            self._splits = measured_on_shared(self._splits, assignment)
        self._inputs = self._make_inputs(self._splits)
        self._resplit: tuple[int, Assignment] = (0, assignment)
        self._assignment = assignment  # last: a refusal above leaves nothing set up

    def _make_inputs(self, splits: Splits) -> Inputs:
        by = normalisation(splits, self.mean, self.std)
        example = splits.train.example[0]
        return Inputs(example, self.partition, self.partition_seed, self.num_clients, self.augmentation, by)

    def _read(self) -> Splits:
        owners = (self.partition.owner_list(test=False), self.partition.owner_list(test=True))
        column = self.partition.column if owners[0] is None else None  # else it is of the list's own file
        options = ReadOptions(
            Roles(self.target, self.features, self.client_column or column),
            self.in_memory,
            self.num_workers,
            self.collate_fn,
            self.test_size,
            test_seed=derive(self.partition_seed, "test"),
            owners=owners,
            image_size=self.image_size,
        )
        if self.train_dataset is None:
            return sources.read_path(self.dataset, self.root, options)
        given = {"data.train_dataset": self.train_dataset}
        if self.test_dataset is not None:
            given["data.test_dataset"] = self.test_dataset
        return sources.read_sets(given, options)

    def describe(self) -> str:
        """In a few words, for titles, such as ``fashion_sample, Dirichlet(alpha=0.3), 10 clients``."""
        name = Path(str(self.dataset)).stem if self.train_dataset is None else type(self.train_dataset).__name__
        kind = type(self.partition)
        option = next(iter(signature(kind).parameters), "")
        value = getattr(self.partition, option, None)
        is_short = isinstance(value, int | float | str) and len(str(value)) <= LONGEST
        partition = f"{kind.__name__}({option}={value})" if is_short else kind.__name__
        return f"{name}, {partition}, {self.num_clients} clients"

    def describe_labels(self) -> str | None:
        """Which labels there are, by the option that brings them; None if they begin at 0, or are no classes.

        Most likely they count from 1, and a class that no sample has would be trained.
        """
        if not self.splits.lowest_class or self.is_placeholder:
            return None
        return f"labels of {self._source()} are {self.splits.lowest_class} to {self.splits.num_classes - 1}"

    def _source(self) -> str:
        return f"`data.dataset` {self.dataset}" if self.train_dataset is None else "`data.train_dataset`"

    def warn_of_labels(self) -> None:
        """A notice where no sample is of class 0."""
        labels = self.describe_labels()
        if labels is not None:
            lowest = self.splits.lowest_class
            remedy = f"if they count from {lowest}, subtract {lowest}"
            warnings.warn(f"{labels}, so that no sample is of class 0; {remedy}.", Notice, stacklevel=2)

    def warn_of_missing_rows(self) -> None:
        """A notice where clients without validation samples have no rows of their own."""
        without = sum(1 for own in self.assignment.val if not len(own))
        if without:
            message = f"{without} of {self.num_clients} clients have no validation samples (see `data.val_size`)"
            warnings.warn(f"{message}: nothing is measured on their own.", Notice, stacklevel=2)

    def labels(self, part: Literal["train", "test"]) -> np.ndarray:
        """The class of each sample, ``[N]``; -1 of one in the public pool, and of all if targets are no classes."""
        found = self.splits.part(part)
        return np.full(len(found), -1) if found.labels is None else found.labels

    def class_counts(self) -> np.ndarray:
        """Training samples of each class at each client, ``[K, C]``; without classes, of each client, ``[K, 1]``."""
        if not self.splits.num_classes:
            return self.assignment.sizes[:, None]
        return self.assignment.class_counts(self.labels("train"), self.splits.num_classes)

    def class_probabilities(self, round: int = 0) -> np.ndarray | None:
        """The class probabilities that clients were drawn by, ``[K, C]``, where the partition knows them."""
        return self._dealer.class_probabilities(self.at_round(round), round)

    def fingerprint(self) -> str:
        """Hash of targets, about a hundred inputs and the assignment, which must be the same to resume a run."""
        digest = sha256()
        assignment = self.assignment
        indices = (*assignment.train, *assignment.val, *assignment.opted_in, *assignment.own_test)
        for content in (*self.splits.train.fingerprint(), *(index.tobytes() for index in indices)):
            digest.update(content)
        return digest.hexdigest()

    def at_round(self, round: int) -> Assignment:
        """The samples of each client in that round."""
        if round == 0 or not (self.partition.resplit_every_round or self.partition.over_time):
            return self.assignment
        if self._resplit[0] != round:
            self._resplit = (round, self._dealer.assign(round))
        return self._resplit[1]

    def client(self, id: int, round: int = 0) -> Client:
        """The client as its methods see it in that round."""
        assignment = self.at_round(round)
        num_samples = len(assignment.train[id])
        return Client(id, self.splits.num_classes, num_samples, assignment.num_opted_in[id], round, data=self)

    def batch_size_of(self, client: int) -> int:
        """Samples per training batch of one client."""
        return self.client_batch_sizes.get(client, self.batch_size)

    def held(self, client: int, samples: Samples, round: int = 0) -> np.ndarray:
        """Places of a client's training samples; `opted_in` leaves its opted-out samples out."""
        assignment = self.at_round(round)
        return assignment.shared(client) if samples == "opted_in" else assignment.train[client]

    def train_batches(
        self, client: int, generator: torch.Generator | None, samples: Samples, round: int = 0, public: bool = False
    ) -> Batches:
        """One client's training batches; `opted_in` leaves its opted-out samples out, `public` mixes the pool in."""
        held = self.held(client, samples, round)
        return self._training_batches(held, self.batch_size_of(client), generator, client, public)

    def val_batches(self, clients: Sequence[int], round: int = 0) -> tuple[Batches, np.ndarray]:
        """The validation samples of some clients, in order, and how many each has."""
        assignment = self.at_round(round)
        part = self.splits.part(assignment.val_split)
        return self._evaluation_batches(part, [assignment.val[k] for k in clients], clients)

    def own_test_batches(self, clients: Sequence[int], round: int = 0) -> tuple[Batches, np.ndarray]:
        """The clients' shares of the test set, in order, and how many samples each has."""
        own_test = self.at_round(round).own_test
        return self._evaluation_batches(self.splits.test, [own_test[k] for k in clients], clients)

    def test_batches(self, client: int | None = None) -> Batches:
        """The pooled test set (of a client's task); dealt out and changed where clients see images differently."""
        if not self.pixels_differ:
            ready = self.inputs.transform(None, copy=True)  # a network may work on its input in place
            return Batches(self.splits.test, self.eval_batch_size, transform=ready)
        parts = self._dealer.deal_test_set()
        return self._evaluation_batches(self.splits.test, parts, range(self.num_clients))[0]

    def public_batches(self, generator: torch.Generator | None, labels: bool = False) -> Batches:
        """The public pool: inputs without labels (every target is -1); `labels` is for upper bounds only."""
        pool = self.public_pool.part
        hidden = None if labels else torch.ones(len(pool), dtype=torch.bool)
        transform = self.inputs.transform(None)
        return Batches(pool, self.batch_size, generator, transform, self.drop_last, hidden=hidden)

    def _training_batches(
        self, held: np.ndarray, size: int, generator: torch.Generator | None, client: int | None, public: bool = False
    ) -> Batches:
        """Training samples at these places; `public` mixes the pool in, without its targets."""
        part = self.splits.train
        inputs = self.inputs
        is_own = client is not None and not public
        ready = inputs.ready_samples(part) if is_own else None
        if ready is not None:
            rows = torch.from_numpy(np.asarray(held, np.int64))
            return Batches(ready, size, generator, drop_last=self.drop_last, rows=rows)
        mine = part.taken(held)
        if is_own and isinstance(mine, StackedSamples) and not inputs.is_random:
            mine = StackedSamples(inputs.ready(mine.x, client), mine.y)
            return Batches(mine, size, generator, drop_last=self.drop_last)
        hidden = None
        if public:
            mine = mine.joined(self.public_pool.part)
            hidden = torch.arange(len(mine)) >= len(held)
        # Prepared batch by batch: a pool of floats would need four times the memory.
        return Batches(mine, size, generator, inputs.transform(client), self.drop_last, hidden=hidden)

    def _evaluation_batches(
        self, part: Part, parts: list[np.ndarray], clients: Sequence[int]
    ) -> tuple[Batches, np.ndarray]:
        """Samples of some clients end to end, each as its client sees it, and how many each has."""
        sizes = np.array([len(own) for own in parts])
        index = np.concatenate(parts)
        ready = self.inputs.ready_samples(part)
        if ready is not None:
            return Batches(ready.taken(index), self.eval_batch_size), sizes
        transform = self.inputs.transform(np.repeat(np.asarray(clients), sizes))
        return Batches(part.taken(index), self.eval_batch_size, transform=transform), sizes

    @property
    def pixels_differ(self) -> bool:
        """Whether clients see the same image differently."""
        return self.inputs.differ

    @property
    def inputs_vary(self) -> bool:
        """Whether a training sample may look different in every epoch."""
        return self.inputs.is_random or self.splits.train.is_random

    def train_dataloader(self) -> Batches:
        """All clients' training samples as one: what a single client that owns everything would see."""
        index = np.concatenate(self.assignment.train)
        generator = torch.Generator().manual_seed(torch.initial_seed())
        return self._training_batches(index, self.batch_size, generator, client=None)

    def val_dataloader(self) -> Batches:
        return self.val_batches(range(self.num_clients))[0]

    def test_dataloader(self) -> Batches:
        return self.test_batches()

    def predict_dataloader(self) -> Batches:
        return self.test_batches()


OPTIONS = frozenset(signature(FederatedData).parameters)


def _after_setup(value: T | None) -> T:
    if value is None:
        raise RuntimeError("`data` is not set up yet; call its setup() first.")
    return value


def check_options(data: FederatedData) -> None:
    """Numbers in their ranges, and clients that exist; what depends on the samples is checked by `setup`."""
    _check_kinds(data)
    for name, (least, most) in COUNTS.items():
        if getattr(data, name) is not None:
            check_count(f"data.{name}", getattr(data, name), least, most)
    for k, size in data.client_batch_sizes.items():
        check_count(f"data.client_batch_sizes[{k}]", size)
    if not isinstance(data.opt_out, list):
        check_share("data.opt_out", data.opt_out)
    check_share("data.opt_out_samples", data.opt_out_samples)
    is_fraction = isinstance(data.public, int | float) and 0 <= data.public < 1
    if data.public != "valid" and not is_fraction:
        raise ValueError(f"`data.public` must lie in [0, 1) or be `valid`, got {data.public}.")
    for value in _each("mean", data.mean):
        check_number("data.mean", value)
    for value in _each("std", data.std):
        check_positive("data.std", value)
    check_number("data.val_size", data.val_size)  # its range depends on where validation samples come from
    if data.test_size is not None and not 0 < check_number("data.test_size", data.test_size) < 1:
        raise ValueError(f"`data.test_size` is a fraction in (0, 1), got {data.test_size}.")
    if data.unseen_clients >= data.num_clients:
        wanted = f"must leave a client to train: 0 to {data.num_clients - 1}"
        raise ValueError(f"`data.unseen_clients` {wanted}, got {data.unseen_clients}.")
    _check_ids(data, "client_batch_sizes", data.client_batch_sizes)
    if isinstance(data.opt_out, list):
        _check_ids(data, "opt_out", data.opt_out)
    _check_together(data)


def _check_kinds(data: FederatedData) -> None:
    """The command line has looked at them already; Python code has not."""
    for name in ("dataset", "root"):
        check_kind(f"data.{name}", getattr(data, name), (str, PathLike), "text")
    for name, text in (("target", data.target), ("client", data.client_column)):
        check_kind(f"data.{name}", text, (str, NoneType), "the name of a column or a key")
    check_kind("data.features", data.features, (list, tuple, NoneType), "a list of columns or keys")
    check_kind("data.partition", data.partition, Partition, "a partition, such as Dirichlet(alpha=0.5)")
    check_kind("data.client_batch_sizes", data.client_batch_sizes, Mapping, "a mapping from client id")
    for name, steps in (("augmentation", data.augmentation), ("censor", data.censor)):
        check_kind(f"data.{name}", steps, (list, tuple), "a list of steps")
        for step in steps:
            if isinstance(step, type) or not callable(step) or not hasattr(step, "random"):
                raise ValueError(f"`data.{name}` must hold augmentations, such as Flip(), got {step!r}.")
    check_choice("data.validation", data.validation, Literal["train", "test", "reserve"])
    check_choice("data.drop_last", str(data.drop_last), Literal["single", "True", "False"])
    check_choice("data.in_memory", str(data.in_memory), Literal["auto", "True", "False"])
    if data.collate_fn is not None and not callable(data.collate_fn):
        raise ValueError(f"`data.collate_fn` must be a function of a list of items, got {data.collate_fn!r}.")


def _check_together(data: FederatedData) -> None:
    """Options that exclude or need each other."""
    if data.own_test and data.validation == "test":
        why = "but `data.validation: test` uses the test set; set it to train or reserve"
        raise ValueError(f"`data.own_test` is what no choice looks at, {why}.")
    if data.train_dataset is None:
        if data.test_dataset is not None:
            raise ValueError("`data.train_dataset` and `data.test_dataset` go together: the training set is missing.")
        return
    if data.dataset != EMBEDDED:
        why = f"give one of them, got {data.dataset} beside it"
        raise ValueError(f"`data.train_dataset` stands in place of `data.dataset`: {why}.")
    if data.image_size is not None:
        raise ValueError("`data.image_size` is for a folder of images, but `data.train_dataset` is given.")
    if data.test_dataset is None and data.test_size is None:
        why = "give both, or `data.test_size`, such as 0.2"
        raise ValueError(f"`data.train_dataset` and `data.test_dataset` go together: {why}.")


def _each(name: str, given: float | Sequence[float] | np.ndarray | None) -> list[Any]:
    """One number, or one for each channel; how many there are is known once the images are."""
    if given is None:
        return []
    values = list(given) if isinstance(given, Sequence | np.ndarray) else [given]
    if not values:
        raise ValueError(f"`data.{name}` must be one number or one per channel, got none.")
    return values


def _check_ids(data: FederatedData, name: str, ids: Iterable[int]) -> None:
    for k in ids:
        if not isinstance(k, Integral) or not 0 <= k < data.num_clients:
            clients = f"the clients are 0 to {data.num_clients - 1} (`data.num_clients` is {data.num_clients})"
            raise ValueError(f"`data.{name}` names client {k!r}, but {clients}.")
