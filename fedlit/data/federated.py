"""The data of a federation: who holds which samples, what they share, and fast batches of them.

Images rest as uint8 tensors and become floats on the way into a batch: scaled to [0, 1], augmented, normalised. Without
random augmentation that happens once a visit, and an epoch is one permutation split into views.
"""

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor
from torch.utils.data import Dataset

from fedlit.augment import Augmentation
from fedlit.data import datasets
from fedlit.data.assignment import Assignment, Saved, opt_in_masks, split_off, split_validation
from fedlit.data.batches import Batches
from fedlit.data.client import Client, Samples
from fedlit.data.public_pool import PublicPool, set_apart
from fedlit.notices import Notice
from fedlit.partition import IID, Partition
from fedlit.rng import derive


class FederatedData(LightningDataModule):
    """A data set dealt out to clients.

    Args:
        dataset: fashion_sample (embedded), mnist, fashion_mnist, cifar10, cifar100, cinic10, or the path of an `.npz`
            with train_images, train_labels, test_images, test_labels.
        root: Folder with `<dataset>.npz`, or where data sets are downloaded to.
        train_dataset: Any torch data set of (input, class) pairs, in place of `dataset`.
        test_dataset: Its test set; goes with `train_dataset`.
        num_clients: Clients in the federation.
        partition: How the training samples are dealt out; IID by default.
        partition_seed: Seed of the partition, apart from the seed of the training.
        validation: Where a client's own validation samples come from: held back from its training samples (`train`),
            the test set dealt out in the same setting (`test`), or a reserve of training samples dealt out (`reserve`).
        val_size: With `train`, the fraction in (0, 1) or number of samples held back per client; with `reserve`, the
            fraction of the training set that goes into the reserve.
        batch_size: Samples per training batch.
        client_batch_sizes: Another batch size for some clients, by client id.
        drop_last: Leave out a last batch that is smaller than `batch_size`.
        augmentation: Steps applied to each batch in turn; random ones only in training.
        mean: Per-channel mean on the [0, 1] scale to subtract; the data set's own by default.
        std: Per-channel standard deviation to divide by; the data set's own by default.
        opt_out: Clients that share nothing: their fraction in [0, 1], or their ids.
        opt_out_samples: Fraction in [0, 1] of every other client's training samples that it does not share.
        unseen_clients: The last so many clients never train; the global model is evaluated on them.
        public: A public pool without labels: a fraction in [0, 1) of the training set, or the data set's `valid` part.
        eval_batch_size: Samples per batch in evaluation.
    """

    def __init__(
        self,
        dataset: str = "fashion_sample",
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
        eval_batch_size: int = 512,
    ) -> None:
        super().__init__()
        self.dataset, self.root = dataset, root
        self.train_dataset, self.test_dataset = train_dataset, test_dataset
        self.num_clients, self.unseen_clients = num_clients, unseen_clients
        self.partition = partition or IID()
        self.partition_seed = partition_seed
        self.validation: Literal["train", "test", "reserve"]
        self.val_size = val_size
        if validation == "pool":
            warnings.warn("`data.validation: pool` is now `data.validation: reserve`.", Notice, stacklevel=2)
            self.validation = "reserve"
        else:
            self.validation = validation
        self.batch_size, self.client_batch_sizes, self.drop_last = batch_size, client_batch_sizes or {}, drop_last
        self.augmentation = augmentation or []
        self.mean, self.std = mean, std
        self.opt_out, self.opt_out_samples, self.public = opt_out, opt_out_samples, public
        self.eval_batch_size = eval_batch_size
        self.images: datasets.Images | None = None
        self.public_pool: PublicPool | None = None
        self._check_options()

    def _check_options(self) -> None:
        positive = {
            "num_clients": self.num_clients,
            "batch_size": self.batch_size,
            "eval_batch_size": self.eval_batch_size,
        }
        positive |= {f"client_batch_sizes[{k}]": size for k, size in self.client_batch_sizes.items()}
        for name, value in positive.items():
            if value < 1:
                raise ValueError(f"`data.{name}` must be at least 1, got {value}.")
        for name in ("opt_out", "opt_out_samples"):
            value = getattr(self, name)
            if not isinstance(value, list) and not 0 <= value <= 1:
                raise ValueError(f"`data.{name}` is a fraction in [0, 1], got {value}.")
        if self.public != "valid" and not 0 <= self.public < 1:
            raise ValueError(f"`data.public` must lie in [0, 1) or be `valid`, got {self.public}.")
        if not 0 <= self.unseen_clients < self.num_clients:
            raise ValueError(
                f"`data.unseen_clients` must leave a client to train: 0 to {self.num_clients - 1}, "
                f"got {self.unseen_clients}."
            )
        for name, ids in (("client_batch_sizes", self.client_batch_sizes), ("opt_out", self.opt_out)):
            if not isinstance(ids, float | int) and (unknown := [k for k in ids if not 0 <= k < self.num_clients]):
                raise ValueError(
                    f"`data.{name}` names client {unknown[0]}, but the clients are 0 to {self.num_clients - 1} "
                    f"(`data.num_clients` is {self.num_clients})."
                )
        if (self.train_dataset is None) != (self.test_dataset is None):
            raise ValueError("`data.train_dataset` and `data.test_dataset` go together: give both or neither.")

    def prepare_data(self) -> None:
        if self.train_dataset is None:
            datasets.fetch(self.dataset, self.root)  # downloads and caches once, on the first process

    def setup(self, stage: str | None = None) -> None:
        if self.images is not None:
            return
        if self.train_dataset is not None:
            self.images = datasets.from_datasets(self.train_dataset, self.test_dataset)
        else:
            self.images = datasets.read_images(self.dataset, self.root)
        seed = derive(self.partition_seed, "public")
        self.images, self.public_pool, self._private = set_apart(self.images, self.public, seed)
        self._labels = self.images.train_y.numpy()
        self.assignment = self.assign(round=0)
        if self.images.measured:  # an opted-out sample must not shape what others' networks see
            parts = zip(self.assignment.train, self.assignment.opted_in, strict=True)
            shared = np.unique(np.concatenate([train[mask] for train, mask in parts]))
            mean, std = datasets.mean_std(self.images.train_x[shared if len(shared) else slice(None)])
            self.images = replace(self.images, mean=mean, std=std)
        self._set_normalisation()
        self._resplit: tuple[int, Assignment] = (0, self.assignment)

    def _set_normalisation(self) -> None:
        channels = self.images.train_x.shape[1] if self.images.train_x.dim() > 1 else 1
        for name in ("mean", "std"):
            given = getattr(self, name)
            values = getattr(self.images, name) if given is None else np.broadcast_to(given, np.size(given)).tolist()
            if len(values) not in (0, 1, channels):
                raise ValueError(f"`data.{name}` must be one number or {channels}, one per channel, got {len(values)}.")
            if name == "std" and min(values, default=1) <= 0:
                raise ValueError(f"`data.std` must be above 0, got {given}.")
            setattr(self, f"_{name}", torch.tensor(values).view(-1, 1, 1) if len(values) else None)

    def assign(self, round: int) -> Assignment:
        """Deal the samples out; the round matters only to a partition with `resplit_every_round`."""
        if isinstance(self.partition, Saved):
            return self._read_saved()
        if self.partition.resplit_every_round and self.validation == "train":
            raise ValueError("`data.validation` must be test or reserve where clients change hands, got train.")
        seed = derive(self.partition_seed, "partition", round) % 2**32
        train, val_split = self._private, "train"
        if self.validation == "reserve":
            if not (isinstance(self.val_size, float) and 0 < self.val_size < 1):
                raise ValueError(
                    f"`data.val_size` with `data.validation: reserve` is a fraction in (0, 1), got {self.val_size}."
                )
            keep, reserve = split_off(self._labels[train], self.val_size, derive(self.partition_seed, "pool"))
            train, reserve = train[keep], train[reserve]
        held = self._deal(self.partition, train, self._labels, seed)
        if self.validation == "train":
            held, val = split_validation(held, self._labels, self.val_size, derive(self.partition_seed, "val") % 2**32)
        elif self.validation == "reserve":
            val = self._deal(self.partition.scaled(self.val_size / (1 - self.val_size)), reserve, self._labels, seed)
        else:
            test_labels, val_split = self.images.test_y.numpy(), "test"
            scaled = self.partition.scaled(len(test_labels) / len(self._labels))
            val = self._deal(scaled, np.arange(len(test_labels)), test_labels, seed)
        opted_in = opt_in_masks(
            held, self.opt_out, self.opt_out_samples, derive(self.partition_seed, "opt_out") % 2**32
        )
        return Assignment(train=held, val=val, val_split=val_split, opted_in=opted_in)

    def _deal(self, partition: Partition, index: np.ndarray, labels: np.ndarray, seed: int) -> list[np.ndarray]:
        parts = partition.assign(labels[index], self.num_clients, self.images.num_classes, seed)
        return [index[part] for part in parts]

    def _read_saved(self) -> Assignment:
        saved = self.partition.read(self._labels, self.images.test_y.numpy())
        if saved.num_clients != self.num_clients:
            raise ValueError(
                f"`{self.partition.path}` assigns {saved.num_clients} clients, "
                f"but `data.num_clients` is {self.num_clients}."
            )
        return saved

    def at_round(self, round: int) -> Assignment:
        """Who holds what in that round."""
        if not self.partition.resplit_every_round:
            return self.assignment
        if self._resplit[0] != round:
            self._resplit = (round, self.assign(round))
        return self._resplit[1]

    def client(self, id: int, round: int = 0) -> Client:
        """The client as its methods see it in that round."""
        shared = self.at_round(round).opted_in[id]
        return Client(id, self.images.num_classes, len(shared), int(np.count_nonzero(shared)), round, data=self)

    def batch_size_of(self, client: int) -> int:
        """Samples per training batch of one client."""
        return self.client_batch_sizes.get(client, self.batch_size)

    def train_batches(
        self, client: int, generator: torch.Generator | None, samples: Samples, round: int = 0, public: bool = False
    ) -> Batches:
        """One client's training batches; `opted_in` leaves its opted-out samples out, `public` mixes the pool in."""
        assignment = self.at_round(round)
        index = assignment.train[client]
        if samples == "opted_in":
            index = index[assignment.opted_in[client]]
        batch_size = self.batch_size_of(client)
        index = torch.from_numpy(np.asarray(index, np.int64))
        x, y = self.images.train_x.index_select(0, index), self.images.train_y.index_select(0, index)
        if public:
            x, y = torch.cat([x, self.public_pool.x]), torch.cat([y, self.public_pool.targets()])
        if public or any(step.random for step in self.augmentation):  # a pool of floats would need four times the room
            return Batches(x, y, batch_size, generator, lambda x, g: self._ready(x, client, g), self.drop_last)
        return Batches(self._ready(x, client), y, batch_size, generator, drop_last=self.drop_last)

    def val_batches(self, clients: Sequence[int], round: int = 0) -> tuple[Batches, np.ndarray]:
        """The validation samples of some clients, in order, and how many each has."""
        assignment = self.at_round(round)
        images = self.images
        x, y = (images.test_x, images.test_y) if assignment.val_split == "test" else (images.train_x, images.train_y)
        parts = [assignment.val[k] for k in clients]
        return self._eval_batches(x, y, parts, clients), np.array([len(part) for part in parts])

    def test_batches(self, client: int | None = None) -> Batches:
        """The pooled test set (of a client's task); dealt out and permuted where clients see permuted pixels."""
        x, y = self.images.test_x, self.images.test_y
        if not self.pixels_differ:
            # Not the test set itself: a network may work on its input in place.
            return Batches(x, y, self.eval_batch_size, transform=lambda x, g: self._ready(x.clone(), None))
        seed = derive(self.partition_seed, "partition", 0) % 2**32
        scaled = self.partition.scaled(len(y) / len(self._labels))
        parts = self._deal(scaled, np.arange(len(y)), y.numpy(), seed)
        return self._eval_batches(x, y, parts, range(self.num_clients))

    def public_batches(self, generator: torch.Generator | None, labels: bool = False) -> Batches:
        """The public pool: inputs without labels (every target is -1); `labels` is for upper bounds only."""
        x, y = self.public_pool.x, self.public_pool.targets(reveal=labels)
        return Batches(x, y, self.batch_size, generator, lambda x, g: self._ready(x, None, g), self.drop_last)

    @property
    def pixels_differ(self) -> bool:
        """Whether clients see the same image differently."""
        return self.partition.pixel_permutation(0, 1, 0) is not None

    def _eval_batches(self, x: Tensor, y: Tensor, parts: list[np.ndarray], clients: Sequence[int]) -> Batches:
        if not self.pixels_differ:
            index = np.concatenate(parts)
            return Batches(x[index], y[index], self.eval_batch_size, transform=lambda x, g: self._ready(x, None))
        ready = torch.cat([self._ready(x[part], k) for part, k in zip(parts, clients, strict=True)])
        return Batches(ready, y[np.concatenate(parts)], self.eval_batch_size)

    def _ready(self, x: Tensor, client: int | None, generator: torch.Generator | None = None) -> Tensor:
        """Raw samples to network inputs; random augmentation only with a generator."""
        if x.dtype == torch.uint8:
            x = x.to(torch.float32).div_(255)
        for step in self.augmentation:
            if generator is not None or not step.random:
                x = step(x, generator)
        if self._mean is not None:
            x = x.sub(self._mean.to(x.device)).div_(self._std.to(x.device))
        permutation = None
        if client is not None:
            permutation = self.partition.pixel_permutation(client, x[0, 0].numel(), self.partition_seed)
        return x if permutation is None else x.flatten(2)[:, :, permutation].view_as(x)

    def train_dataloader(self) -> Batches:
        """All clients' training samples as one: what a single client that owns everything would see."""
        index = np.concatenate(self.assignment.train)
        x, y = self.images.train_x[index], self.images.train_y[index]
        generator = torch.Generator().manual_seed(torch.initial_seed())
        return Batches(x, y, self.batch_size, generator, lambda x, g: self._ready(x, None, g), self.drop_last)

    def val_dataloader(self) -> Batches:
        return self.val_batches(range(self.num_clients))[0]

    def test_dataloader(self) -> Batches:
        return self.test_batches()

    def predict_dataloader(self) -> Batches:
        return self.test_batches()
