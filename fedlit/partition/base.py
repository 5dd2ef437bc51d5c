"""Who holds what: labels in, one index array per client out.

Law: what a client *gets* (shards, classes, proportions) follows from ``(num_clients, num_classes, seed)``, never from
the labels. So the same partition and seed on the test labels gives each client validation data in its own setting.
"""

import copy
from abc import ABC, abstractmethod

import numpy as np

from fedlit.augment import Augmentation
from fedlit.bounds import check_kind


class Partition(ABC):
    """How the samples of a data set fall to the clients."""

    resplit_every_round: bool = False
    """Whether all samples are dealt out anew in every round."""

    samples_per_client: int | None = None

    by_class: bool = True
    """Whether it looks at classes: it is refused where targets are none, and all labels are 0 if it is not."""

    by_owner: bool = False
    """Whether it goes by the client that each sample names, which `for_samples` then tells."""

    over_time: bool = False
    """Whether a client has another part of its samples in every round, as `in_round` says."""

    column: str | None = None
    """The column that names the client of a sample."""

    @abstractmethod
    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        """One int64 index array per client into `labels`."""

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray | None:
        """What a client's classes are drawn by, ``[K, C]``, rows adding up to 1; None: only its samples tell.

        Args:
            class_sizes: Samples of each class that are dealt out, ``[C]``.
            num_clients: Rows.
            seed: As for `assign`.
        """
        return None

    def scaled(self, factor: float) -> "Partition":
        """The same setting with `samples_per_client` times `factor` (at least 1); self if there is no such number."""
        if self.samples_per_client is None:
            return self
        other = copy.copy(self)
        other.samples_per_client = max(1, round(self.samples_per_client * factor))
        return other

    def for_samples(self, owners: np.ndarray) -> "Partition":
        """The same for samples that belong to these clients, 0 to K - 1, ``[N]``; asked only if `by_owner`."""
        return self

    def owner_list(self, test: bool) -> list | None:
        """Who each sample of the training or the test set belongs to, in any words, where no column says it."""
        return None

    def in_round(self, samples: np.ndarray, round: int) -> np.ndarray:
        """Which of a client's samples, given by their places in the data set, it has in a round: a mask ``[N]``.

        Round 0 stands for all of them.
        """
        return np.ones(len(samples), dtype=bool)

    def pixel_permutation(self, client: int, num_pixels: int, seed: int) -> np.ndarray | None:
        """The order in which this client sees its pixels; None is the usual one."""
        return None

    def view(self, client: int, seed: int) -> list[Augmentation]:
        """Steps, none of them random, through which this client sees every image, float in [0, 1]."""
        return []


class Wrapper(Partition):
    """A partition around another, whose word holds wherever this one has none of its own.

    Args:
        base: Who holds which samples.
    """

    @abstractmethod  # so that nobody is offered it as a partition
    def __init__(self, base: Partition) -> None:
        check_kind("base", base, Partition, "a partition")
        self.base = base
        self.resplit_every_round = base.resplit_every_round
        self.by_class = base.by_class
        self.by_owner = base.by_owner
        self.over_time = base.over_time
        self.column = base.column

    def around(self, base: Partition) -> "Wrapper":
        """The same around another partition."""
        other = copy.copy(self)
        other.base = base
        return other

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        return self.base.assign(labels, num_clients, num_classes, seed)

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray | None:
        return self.base.class_probabilities(class_sizes, num_clients, seed)

    def scaled(self, factor: float) -> "Wrapper":
        return self.around(self.base.scaled(factor))

    def for_samples(self, owners: np.ndarray) -> "Wrapper":
        return self.around(self.base.for_samples(owners))

    def owner_list(self, test: bool) -> list | None:
        return self.base.owner_list(test)

    def in_round(self, samples: np.ndarray, round: int) -> np.ndarray:
        return self.base.in_round(samples, round)

    def pixel_permutation(self, client: int, num_pixels: int, seed: int) -> np.ndarray | None:
        return self.base.pixel_permutation(client, num_pixels, seed)

    def view(self, client: int, seed: int) -> list[Augmentation]:
        return self.base.view(client, seed)
