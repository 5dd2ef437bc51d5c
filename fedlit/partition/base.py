"""The base of partitions: labels in, one index array per client out.

Invariant: what a client *gets* (shards, classes, proportions) follows from ``(num_clients, num_classes, seed)``, never
from the labels. So the same partition and seed on the test labels gives each client validation data in its own setting.
"""

import copy
from abc import ABC, abstractmethod

import numpy as np

from fedlit.augment import Augmentation
from fedlit.bounds import check_count


class Partition(ABC):
    """Assigns the samples of a data set to clients."""

    resplit_every_round: bool = False
    """Whether all samples are dealt out anew in every round."""

    samples_per_client: int | None = None

    by_class: bool = True
    """Whether it looks at classes: it is refused where targets are none, and all labels are 0 if it is not."""

    by_owner: bool = False
    """Whether it needs the client of each sample, which `for_samples` is then given."""

    over_time: bool = False
    """Whether a client has another part of its samples in every round, as `in_round` says."""

    column: str | None = None
    """The column that names the client of a sample."""

    @abstractmethod
    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        """One int64 index array per client into `labels`."""

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray | None:
        """The class probabilities of each client, ``[K, C]``, rows adding up to 1; None where unknown.

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
        """The client of each sample of the training or the test set, by any name, where no column has it."""
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


def require(ok: bool, message: str) -> None:
    """Refuse bad input: a ValueError with `message` unless `ok`."""
    if not ok:
        raise ValueError(message)


def enough(num_samples: int, num_clients: int, option: str, each: int = 1) -> None:
    message = f"`{option}`: {num_clients} clients with {each} or more each need {num_clients * each} samples"
    require(num_clients * each <= num_samples, f"{message}, there are {num_samples}.")


def checked_labels(labels: np.ndarray, num_clients: int, num_classes: int) -> np.ndarray:
    labels = np.asarray(labels)
    check_count("num_clients", num_clients)
    require(labels.ndim == 1 and labels.size > 0, f"`labels` must be [N] with N > 0, got {list(labels.shape)}.")
    low, high = labels.min(), labels.max()
    require(low >= 0 and high < num_classes, f"`labels` must lie in [0, {num_classes}), got {low} to {high}.")
    return labels.astype(np.int64, copy=False)


def grouped(values: np.ndarray, owners: np.ndarray, num_clients: int) -> list[np.ndarray]:
    """The values of each client, in their given order."""
    ends = np.cumsum(np.bincount(owners, minlength=num_clients))
    return np.split(values[np.argsort(owners, kind="stable")], ends[:-1])


def log_dirichlet(rng: np.random.Generator, alpha: float, shape: tuple[int, int]) -> np.ndarray:
    """Logarithms of rows drawn from Dir(alpha), which may be too small for a float themselves."""
    # Gamma(a) = Gamma(a + 1) U^(1/a), in logarithms: for small alpha rng.dirichlet underflows to 0 / 0
    log_g = np.log(rng.standard_gamma(alpha + 1, shape))
    log_g -= rng.standard_exponential(shape) / alpha
    log_g -= log_g.max(axis=1, keepdims=True)
    return log_g - np.log(np.exp(log_g).sum(axis=1, keepdims=True))


def row_shares(weights: np.ndarray) -> np.ndarray:
    """Each row of ``[K, C]`` divided by its sum; 0 where there is nothing to share.

    Example:
        >>> row_shares(np.array([[1.0, 3.0], [0.0, 0.0]])).tolist()
        [[0.25, 0.75], [0.0, 0.0]]
    """
    return weights / np.maximum(weights.sum(axis=1, keepdims=True), 1e-300)


def top_up(counts: np.ndarray, log_q: np.ndarray, min_samples: int) -> None:
    """Change `counts` ``[C, K]`` in place until every client has `min_samples`, by its largest classes first.

    Args:
        counts: Samples of each class at each client.
        log_q: Logarithms of the clients' shares of each class, ``[C, K]``.
        min_samples: What each client holds at least.
    """
    totals = counts.sum(axis=0)
    for k in np.flatnonzero(totals < min_samples).tolist():
        for c in np.argsort(-log_q[:, k]):
            _take(k, counts[c], totals, min_samples)


def _take(k: int, held: np.ndarray, totals: np.ndarray, min_samples: int) -> None:
    """Let client k take samples of one class, of which clients have `held` ``[K]``, as long as it is short."""
    while totals[k] < min_samples:
        spare = np.minimum(held, totals - min_samples)
        donor = spare.argmax()
        if spare[donor] <= 0:
            return
        moved = min(spare[donor], min_samples - totals[k])
        held[[donor, k]] += (-moved, moved)
        totals[[donor, k]] += (-moved, moved)
