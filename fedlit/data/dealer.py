"""Deals a data set out to the clients, as the options of the data say."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.data.assignment import Assignment, Saved, opt_in_masks, split_off, split_validation
from fedlit.data.owners import Owners
from fedlit.data.parts import Splits
from fedlit.data.trees import told
from fedlit.partition import Partition
from fedlit.rng import derive

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData

Set = Literal["train", "test"]


class Dealer:
    """Who gets which samples.

    Args:
        options: Of the data: partition, validation, opt-out and their seed.
        splits: What is dealt out; labels of the public pool are -1.
        private: Training samples that are not in the public pool, ``[N]``.
    """

    def __init__(self, options: "FederatedData", splits: Splits, private: np.ndarray) -> None:
        self.options = options
        self.partition = options.partition
        self.num_classes = splits.num_classes
        self.labels = _labels(splits.train.labels, len(splits.train))
        self.test_labels = _labels(splits.test.labels, len(splits.test))
        self.private = private
        self.owners: Owners | None = None
        if self.partition.by_owner:
            self.owners = Owners(splits, options.num_clients)
        if self.partition.by_class and not self.num_classes and not isinstance(self.partition, Saved):
            self._refuse_without_classes(told(splits.train.example[1], of_many=True))

    def _refuse_without_classes(self, target: str) -> None:
        kind = type(self.partition)
        remedy = "take IID, Quantity or ByColumn"
        if not kind.__module__.startswith("fedlit."):
            remedy = "if it looks at no label, set its `by_class = False`"
        told_what = f"{kind.__name__} deals samples out by their classes, but their targets are {target}"
        raise ValueError(f"`data.partition`: {told_what}; {remedy}.")

    def assign(self, round: int) -> Assignment:
        """Deal the samples out; the round matters only to a partition that resplits or goes over time."""
        if isinstance(self.partition, Saved):
            return self._read_saved(self.partition)
        options = self.options
        if self.partition.resplit_every_round and options.validation == "train":
            raise ValueError("`data.validation` must be test or reserve where clients change hands, got train.")
        seed = self._seed_of(round)
        val_split: Set = "train"
        if options.validation == "train":
            held = self._deal(self.partition, self.private, "train", seed)
            train, val = split_validation(held, self.labels, options.val_size, self._seed("val"))
        elif options.validation == "reserve":
            train, val = self._deal_with_reserve(seed)
        else:
            val_split = "test"
            train = self._deal(self.partition, self.private, "train", seed)
            val = self.deal_test_set(round)
        opted_in = opt_in_masks(train, options.opt_out, options.opt_out_samples, self._seed("opt_out"))
        own_test = self.deal_test_set(round) if options.own_test else []
        there = [self.partition.in_round(samples, round) for samples in train]
        train = [samples[mask] for samples, mask in zip(train, there, strict=True)]
        opted_in = [opted[mask] for opted, mask in zip(opted_in, there, strict=True)]
        return Assignment(train, val, val_split, opted_in, own_test)

    def deal_test_set(self, round: int = 0) -> list[np.ndarray]:
        """Samples of the test set for each client, in the setting of its training samples."""
        scaled = self.partition.scaled(len(self.test_labels) / len(self.labels))
        everything = np.arange(len(self.test_labels))
        return self._deal(scaled, everything, "test", self._seed_of(round))

    def class_probabilities(self, assignment: Assignment, round: int) -> np.ndarray | None:
        """What the partition says of each client's classes, ``[K, C]``; None if nothing.

        Classes are weighed by their opted-in samples alone: no other may shape what is made of this.
        """
        if not self.num_classes:
            return None
        held = zip(assignment.train, assignment.opted_in, strict=True)
        opted_in = np.concatenate([self.labels[train[mask]] for train, mask in held])
        class_sizes = np.bincount(opted_in, minlength=self.num_classes)
        return self.partition.class_probabilities(class_sizes, self.options.num_clients, self._seed_of(round))

    def _seed(self, *purpose: str | int) -> int:
        return derive(self.options.partition_seed, *purpose) % 2**32

    def _seed_of(self, round: int) -> int:
        """Of the draw that a round goes by."""
        return self._seed("partition", round if self.partition.resplit_every_round else 0)

    def _deal_with_reserve(self, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Training and validation samples of each client, the latter from a reserve in the same setting."""
        fraction = self.options.val_size
        if not (isinstance(fraction, float) and 0 < fraction < 1):
            raise ValueError(
                f"`data.val_size` with `data.validation: reserve` is a fraction in (0, 1), got {fraction}."
            )
        reserve_seed = derive(self.options.partition_seed, "pool")
        rest, reserve = split_off(self.labels[self.private], fraction, reserve_seed)
        train = self._deal(self.partition, self.private[rest], "train", seed)
        scaled = self.partition.scaled(fraction / (1 - fraction))
        val = self._deal(scaled, self.private[reserve], "train", seed)
        return train, val

    def _deal(self, partition: Partition, index: np.ndarray, which: Set, seed: int) -> list[np.ndarray]:
        labels = self.labels if which == "train" else self.test_labels
        if self.owners is not None:
            partition = partition.for_samples(self.owners.of(which)[index])
        num_clients = self.options.num_clients
        parts = partition.assign(labels[index], num_clients, max(self.num_classes, 1), seed)
        return [index[part] for part in _checked(parts, num_clients, len(index), partition)]

    def _read_saved(self, partition: Saved) -> Assignment:
        labels = (self.options.labels("train"), self.options.labels("test"))
        saved = partition.read(*labels)
        wanted = self.options.num_clients
        if saved.num_clients != wanted:
            raise ValueError(
                f"`{partition.path}` assigns {saved.num_clients} clients, but `data.num_clients` is {wanted}."
            )
        if self.options.own_test and not saved.own_test:
            raise ValueError(f"`data.own_test` needs own_test rows, but `{partition.path}` has none.")
        return saved


def _labels(labels: np.ndarray | None, num_samples: int) -> np.ndarray:
    """Of samples without classes, one for all."""
    return np.zeros(num_samples, np.int64) if labels is None else labels


def _checked(parts: list[np.ndarray], num_clients: int, num_samples: int, partition: Partition) -> list[np.ndarray]:
    """What a partition deals out, if it is indices of these samples; a user's own may give anything."""
    told_what = f"`data.partition`: `assign` of {type(partition).__name__} must give {num_clients} arrays of indices"
    if not isinstance(parts, list | tuple) or len(parts) != num_clients:
        got = len(parts) if isinstance(parts, list | tuple) else f"a {type(parts).__name__}"
        raise ValueError(f"{told_what}, one per client, got {got}.")
    found = []
    for k, part in enumerate(parts):
        indices = np.asarray(part)
        if indices.size == 0:
            indices = indices.astype(np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ValueError(f"{told_what}, got {indices.dtype} {list(indices.shape)} for client {k}.")
        if indices.size and not 0 <= indices.min() <= indices.max() < num_samples:
            ends = f"{indices.min()} to {indices.max()}"
            told_range = f"{told_what} into the {num_samples} labels that it is given, got {ends} for client {k}"
            raise ValueError(f"{told_range}; test samples are dealt out by a call of their own.")
        found.append(indices.astype(np.int64, copy=False))
    return found
