"""Deals a data set out to the clients, as the options of the data say."""

from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.data.assignment import Assignment, Saved, opt_in_masks, split_off, split_validation
from fedlit.data.datasets import Images
from fedlit.partition import Partition
from fedlit.rng import derive

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData


class Dealer:
    """Who gets which samples.

    Args:
        options: Of the data: partition, validation, opt-out and their seed.
        images: What is dealt out; labels of the public pool are -1.
        private: Training samples that are not in the public pool, ``[N]``.
    """

    def __init__(self, options: "FederatedData", images: Images, private: np.ndarray) -> None:
        self.options = options
        self.partition = options.partition
        self.num_classes = max(images.num_classes, 1)
        self.labels = images.labels("train")
        self.test_labels = images.labels("test")
        self.private = private

    def assign(self, round: int) -> Assignment:
        """Deal the samples out; the round matters only to a partition with `resplit_every_round`."""
        if isinstance(self.partition, Saved):
            return self._read_saved(self.partition)
        options = self.options
        if self.partition.resplit_every_round and options.validation == "train":
            raise ValueError("`data.validation` must be test or reserve where clients change hands, got train.")
        seed = self._seed("partition", round)
        val_split: Literal["train", "test"] = "train"
        if options.validation == "train":
            held = self._deal(self.partition, self.private, self.labels, seed)
            train, val = split_validation(held, self.labels, options.val_size, self._seed("val"))
        elif options.validation == "reserve":
            train, val = self._deal_with_reserve(seed)
        else:
            val_split = "test"
            train = self._deal(self.partition, self.private, self.labels, seed)
            val = self.deal_test_set(round)
        opted_in = opt_in_masks(train, options.opt_out, options.opt_out_samples, self._seed("opt_out"))
        own_test = self.deal_test_set(round) if options.own_test else []
        return Assignment(train, val, val_split, opted_in, own_test)

    def deal_test_set(self, round: int = 0) -> list[np.ndarray]:
        """Samples of the test set for each client, in the setting of its training samples."""
        scaled = self.partition.scaled(len(self.test_labels) / len(self.labels))
        everything = np.arange(len(self.test_labels))
        return self._deal(scaled, everything, self.test_labels, self._seed("partition", round))

    def class_probabilities(self, assignment: Assignment, round: int) -> np.ndarray | None:
        """What the partition says of each client's classes, ``[K, C]``; None if nothing.

        Classes are weighed by their opted-in samples alone: no other may shape what is made of this.
        """
        held = zip(assignment.train, assignment.opted_in, strict=True)
        opted_in = np.concatenate([self.labels[train[mask]] for train, mask in held])
        class_sizes = np.bincount(opted_in, minlength=self.num_classes)
        return self.partition.class_probabilities(class_sizes, self.options.num_clients, self._seed("partition", round))

    def _seed(self, *purpose: str | int) -> int:
        return derive(self.options.partition_seed, *purpose) % 2**32

    def _deal_with_reserve(self, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Training and validation samples of each client, the latter from a reserve in the same setting."""
        fraction = self.options.val_size
        if not (isinstance(fraction, float) and 0 < fraction < 1):
            raise ValueError(
                f"`data.val_size` with `data.validation: reserve` is a fraction in (0, 1), got {fraction}."
            )
        reserve_seed = derive(self.options.partition_seed, "pool")
        rest, reserve = split_off(self.labels[self.private], fraction, reserve_seed)
        train = self._deal(self.partition, self.private[rest], self.labels, seed)
        scaled = self.partition.scaled(fraction / (1 - fraction))
        val = self._deal(scaled, self.private[reserve], self.labels, seed)
        return train, val

    def _deal(self, partition: Partition, index: np.ndarray, labels: np.ndarray, seed: int) -> list[np.ndarray]:
        parts = partition.assign(labels[index], self.options.num_clients, self.num_classes, seed)
        return [index[part] for part in parts]

    def _read_saved(self, partition: Saved) -> Assignment:
        saved = partition.read(self.labels, self.test_labels)
        wanted = self.options.num_clients
        if saved.num_clients != wanted:
            raise ValueError(
                f"`{partition.path}` assigns {saved.num_clients} clients, but `data.num_clients` is {wanted}."
            )
        if self.options.own_test and not saved.own_test:
            raise ValueError(f"`data.own_test` needs own_test rows, but `{partition.path}` has none.")
        return saved
