"""The data of a federation: who holds which samples, what they share, and fast batches of them.

Images rest as uint8 tensors and become floats on the way into a batch: scaled to [0, 1], augmented,
normalised. Without random augmentation that happens once a visit, and an epoch is one permutation
split into views.
"""

import warnings
from collections.abc import Callable, Sequence
from os import PathLike, fspath
from typing import Literal, TypeVar

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import Dataset

from fedlit.augment import Augmentation
from fedlit.data import datasets
from fedlit.data.assignment import Assignment
from fedlit.data.batches import Batches
from fedlit.data.checks import EMBEDDED, check_options
from fedlit.data.client import Client, Samples
from fedlit.data.dealer import Dealer
from fedlit.data.normalisation import Normalisation, measured_on_opted_in, normalisation
from fedlit.data.public_pool import PublicPool, set_apart
from fedlit.notices import Notice
from fedlit.partition import IID, Partition
from fedlit.rng import derive

T = TypeVar("T")


class FederatedData(LightningDataModule):
    """A data set dealt out to clients.

    Args:
        dataset: fashion_sample (embedded), mnist, fashion_mnist, cifar10, cifar100, cinic10, or the
            path of an `.npz` with train_images, train_labels, test_images, test_labels.
        root: Folder with `<dataset>.npz`, or where data sets are downloaded to.
        train_dataset: Any torch data set of (input, class) pairs, in place of `dataset`.
        test_dataset: Its test set; goes with `train_dataset`.
        num_clients: Clients in the federation.
        partition: How the training samples are dealt out; IID by default.
        partition_seed: Seed of the partition, apart from the seed of the training.
        validation: Where a client's own validation samples come from: held back from its training
            samples (`train`), the test set dealt out in the same setting (`test`), or a reserve of
            training samples dealt out (`reserve`, which was called `pool`).
        val_size: With `train`, the fraction in (0, 1) or number of samples held back per client;
            with `reserve`, the fraction of the training set that goes into the reserve.
        batch_size: Samples per training batch.
        client_batch_sizes: Another batch size for some clients, by client id.
        drop_last: Leave out a last batch that is smaller than `batch_size`.
        augmentation: Steps applied to each batch in turn; random ones only in training.
        mean: Per-channel mean on the [0, 1] scale to subtract; the data set's own by default. Inputs that are
            floats are taken as they are.
        std: Per-channel standard deviation to divide by; the data set's own by default.
        opt_out: Clients that share nothing: their fraction in [0, 1], or their ids.
        opt_out_samples: Fraction in [0, 1] of every other client's training samples that it does
            not share.
        unseen_clients: The last so many clients never train; the global model is evaluated on them.
        public: A public pool without labels: a fraction in [0, 1) of the training set, or the data
            set's `valid` part.
        eval_batch_size: Samples per batch in evaluation.
        own_test: Deal the test set out in the same setting, beside validation samples from the
            training set: clients' models are evaluated there too (`own_test`), and nothing is chosen
            by it.
    """

    _images: datasets.Images | None = None
    _public_pool: PublicPool | None = None
    _assignment: Assignment | None = None
    _normalisation: Normalisation | None = None
    is_stand_in = False  # blank samples in place of data that are not there

    def __init__(
        self,
        dataset: str = EMBEDDED,
        root: str = "data",
        train_dataset: Dataset | None = None,
        test_dataset: Dataset | None = None,
        num_clients: int = 10,
        partition: Partition | None = None,
        partition_seed: int = 0,
        validation: Literal["train", "test", "reserve", "pool"] = "train",
        val_size: float | int = 0.1,
        batch_size: int = 32,
        client_batch_sizes: dict[int, int] | None = None,
        drop_last: bool = False,
        augmentation: list[Augmentation] | None = None,
        mean: float | list[float] | None = None,
        std: float | list[float] | None = None,
        opt_out: float | list[int] = 0.0,
        opt_out_samples: float = 0.0,
        unseen_clients: int = 0,
        public: float | Literal["valid"] = 0.0,
        eval_batch_size: int = 256,
        own_test: bool = False,
    ) -> None:
        super().__init__()
        self.dataset = fspath(dataset) if isinstance(dataset, PathLike) else dataset
        self.root = root
        self.train_dataset = train_dataset
        self.test_dataset = test_dataset
        self.num_clients = num_clients
        self.unseen_clients = unseen_clients
        self.partition = partition or IID()
        self.partition_seed = partition_seed
        self.validation = _renamed(validation)
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
        check_options(self)

    @property
    def images(self) -> datasets.Images:
        """The data set in memory, once `setup` has run; labels of the public pool are -1."""
        return _after_setup(self._images)

    def example(self) -> tuple[Tensor, Tensor]:
        """Input and target of one sample, as the data set holds them, ``[1, ...]``."""
        return self.images.test_x[:1], self.images.test_y[:1]

    def normalise_by(self, normalisation: Normalisation | None) -> None:
        """Normalise inputs so from now on, in place of by the data's own mean and standard deviation."""
        self._normalisation = normalisation

    @property
    def public_pool(self) -> PublicPool:
        """Inputs that everybody has, once `setup` has run; empty unless `public` says otherwise."""
        return _after_setup(self._public_pool)

    @property
    def assignment(self) -> Assignment:
        """Who holds what, once `setup` has run; see `at_round` for clients that change hands."""
        return _after_setup(self._assignment)

    def prepare_data(self) -> None:
        if self.train_dataset is None:
            datasets.fetch(self.dataset, self.root)  # downloads and caches once, on the first process

    def setup(self, stage: str | None = None) -> None:
        if self._assignment is not None:
            return
        whole = self._read()
        public_seed = derive(self.partition_seed, "public")
        self._images, self._public_pool, private = set_apart(whole, self.public, public_seed)
        self._dealer = Dealer(self, self._images, private)
        assignment = self._dealer.assign(round=0)
        if self._images.measured:
            self._images = measured_on_opted_in(self._images, assignment)
        self._normalisation = normalisation(self._images, self.mean, self.std)
        self._resplit: tuple[int, Assignment] = (0, assignment)
        self._assignment = assignment  # last: a refusal above leaves nothing set up

    def _read(self) -> datasets.Images:
        if self.train_dataset is not None and self.test_dataset is not None:
            return datasets.from_datasets(self.train_dataset, self.test_dataset)
        return datasets.read_images(self.dataset, self.root)

    def class_probabilities(self, round: int = 0) -> np.ndarray | None:
        """The class probabilities that clients were drawn by, ``[K, C]``, where the partition knows them."""
        return self._dealer.class_probabilities(self.at_round(round), round)

    def at_round(self, round: int) -> Assignment:
        """Who holds what in that round."""
        if not self.partition.resplit_every_round:
            return self.assignment
        if self._resplit[0] != round:
            self._resplit = (round, self._dealer.assign(round))
        return self._resplit[1]

    def client(self, id: int, round: int = 0) -> Client:
        """The client as its methods see it in that round."""
        opted_in = self.at_round(round).opted_in[id]
        num_opted_in = int(np.count_nonzero(opted_in))
        return Client(id, self.images.num_classes, len(opted_in), num_opted_in, round, data=self)

    def batch_size_of(self, client: int) -> int:
        """Samples per training batch of one client."""
        return self.client_batch_sizes.get(client, self.batch_size)

    def train_batches(
        self, client: int, generator: torch.Generator | None, samples: Samples, round: int = 0, public: bool = False
    ) -> Batches:
        """One client's training batches; `opted_in` leaves its opted-out samples out, `public` mixes the pool in."""
        assignment = self.at_round(round)
        held = assignment.train[client]
        if samples == "opted_in":
            held = held[assignment.opted_in[client]]
        index = torch.from_numpy(np.asarray(held, np.int64))
        x = self.images.train_x.index_select(0, index)
        y = self.images.train_y.index_select(0, index)
        batch_size = self.batch_size_of(client)
        is_random = any(step.random for step in self.augmentation)
        if not public and not is_random:
            return Batches(self._ready(x, client), y, batch_size, generator, drop_last=self.drop_last)
        if public:
            x = torch.cat([x, self.public_pool.x])
            y = torch.cat([y, self.public_pool.targets()])
        # On the way into each batch: a pool of floats would need four times the room.
        return Batches(x, y, batch_size, generator, self._getting_ready(client), self.drop_last)

    def val_batches(self, clients: Sequence[int], round: int = 0) -> tuple[Batches, np.ndarray]:
        """The validation samples of some clients, in order, and how many each has."""
        assignment = self.at_round(round)
        x, y = self.images.split(assignment.val_split)
        parts = [assignment.val[k] for k in clients]
        sizes = np.array([len(part) for part in parts])
        return self._eval_batches(x, y, parts, clients), sizes

    def own_test_batches(self, clients: Sequence[int], round: int = 0) -> tuple[Batches, np.ndarray]:
        """The clients' shares of the test set, in order, and how many samples each has."""
        x, y = self.images.split("test")
        own_test = self.at_round(round).own_test
        parts = [own_test[k] for k in clients]
        sizes = np.array([len(part) for part in parts])
        return self._eval_batches(x, y, parts, clients), sizes

    def test_batches(self, client: int | None = None) -> Batches:
        """The pooled test set (of a client's task); dealt out and permuted where clients see permuted pixels."""
        x, y = self.images.split("test")
        if not self.pixels_differ:
            # Not the test set itself: a network may work on its input in place.
            return Batches(x, y, self.eval_batch_size, transform=lambda x, _: self._ready(x.clone(), None))
        parts = self._dealer.deal_test_set()
        return self._eval_batches(x, y, parts, range(self.num_clients))

    def public_batches(self, generator: torch.Generator | None, labels: bool = False) -> Batches:
        """The public pool: inputs without labels (every target is -1); `labels` is for upper bounds only."""
        y = self.public_pool.targets(reveal=labels)
        return Batches(self.public_pool.x, y, self.batch_size, generator, self._getting_ready(None), self.drop_last)

    @property
    def pixels_differ(self) -> bool:
        """Whether clients see the same image differently."""
        return self.partition.pixel_permutation(0, 1, 0) is not None

    def _eval_batches(self, x: Tensor, y: Tensor, parts: list[np.ndarray], clients: Sequence[int]) -> Batches:
        index = torch.from_numpy(np.concatenate(parts).astype(np.int64, copy=False))
        targets = y.index_select(0, index)
        if not self.pixels_differ:
            inputs = x.index_select(0, index)
            return Batches(inputs, targets, self.eval_batch_size, transform=self._getting_ready(None))
        ready = [self._ready(x[part], k) for part, k in zip(parts, clients, strict=True)]
        return Batches(torch.cat(ready), targets, self.eval_batch_size)

    def _getting_ready(self, client: int | None) -> Callable[[Tensor, torch.Generator | None], Tensor]:
        return lambda x, generator: self._ready(x, client, generator)

    def _ready(self, x: Tensor, client: int | None, generator: torch.Generator | None = None) -> Tensor:
        """Raw samples to network inputs; random augmentation only with a generator."""
        if x.dtype == torch.uint8:
            x = x.to(torch.float32).div_(255)
        for step in self.augmentation:
            if generator is not None or not step.random:
                x = step(x, generator)
        if self._normalisation is not None:
            x = self._normalisation(x)
        if client is None:
            return x
        permutation = self.partition.pixel_permutation(client, x[0, 0].numel(), self.partition_seed)
        if permutation is None:
            return x
        return x.flatten(2)[:, :, permutation].view_as(x)

    def train_dataloader(self) -> Batches:
        """All clients' training samples as one: what a single client that owns everything would see."""
        index = np.concatenate(self.assignment.train)
        x = self.images.train_x[index]
        y = self.images.train_y[index]
        generator = torch.Generator().manual_seed(torch.initial_seed())
        return Batches(x, y, self.batch_size, generator, self._getting_ready(None), self.drop_last)

    def val_dataloader(self) -> Batches:
        return self.val_batches(range(self.num_clients))[0]

    def test_dataloader(self) -> Batches:
        return self.test_batches()

    def predict_dataloader(self) -> Batches:
        return self.test_batches()


def _renamed(validation: str) -> str:
    """The name of 0.1 goes on working for one release."""
    if validation != "pool":
        return validation
    warnings.warn("`data.validation: pool` is now `data.validation: reserve`.", Notice, stacklevel=3)
    return "reserve"


def _after_setup(value: T | None) -> T:
    if value is None:
        raise RuntimeError("`data` is not set up yet; call its setup() first.")
    return value
