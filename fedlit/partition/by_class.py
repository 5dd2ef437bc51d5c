"""Partitions by class: which classes a client holds, and how many samples of each. Each is a setting of the papers."""

from typing import Literal

import numpy as np

from fedlit.bounds import check_choice, check_count, check_kind, check_positive, check_share
from fedlit.partition.base import Partition, checked_labels, enough, grouped, log_dirichlet, require, row_shares, top_up
from fedlit.rng import stream

Mode = Literal["equal_size", "per_class", "distinct"]
Pairs = Literal["drawn", "fixed"]
Halves = Literal["halves", "even_odd", "random"]
SetName = Literal["iid", "niid1", "niid2", "niid3"]
# Of DLAD's settings: the classes of five clients, which repeat over the others.
CLASS_SETS = {
    "niid1": [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]],
    "niid2": [[0, 1, 2, 3, 4, own] for own in (5, 6, 7, 8, 9)],
    "niid3": [[0, 1, 2, 3], [0, 4, 5, 6], [1, 4, 7, 8], [2, 5, 7, 9], [3, 6, 8, 9]],
}
SMALLEST_ALPHA = 1e-300  # below it logarithms of shares overflow
MOST_DRAWS = 100_000_000  # with replacement, of all clients together


class Shards(Partition):
    """Sort by label, cut into ``K p`` shards, deal ``p`` to each client at random (McMahan et al. 2017; FML).

    Args:
        per_client: ``p``; a client holds about that many classes, fewer when it draws two shards of one class.
        mode: ``equal_size`` shards straddle classes of unequal size (MNIST); ``per_class`` cuts every class into the
            same number of shards: at most ``p`` classes for sure; ``distinct`` does so, too, and gives no
            client two shards of one class: exactly ``p`` classes. With ``K p`` = C no two clients share one.
        samples_per_client: How many each client keeps of its shards, drawn at random; by default all.
    """

    def __init__(self, per_client: int = 2, mode: Mode = "equal_size", samples_per_client: int | None = None) -> None:
        self.per_client = check_count("per_client", per_client)
        check_choice("mode", mode, Mode)
        self.mode = mode
        if samples_per_client is not None:
            self.samples_per_client = check_count("samples_per_client", samples_per_client)

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        labels = checked_labels(labels, num_clients, num_classes)
        runs = np.array([len(labels)])  # samples in each stretch that is cut by itself
        if self.mode != "equal_size":
            runs = np.bincount(labels, minlength=num_classes)
        num_shards = num_clients * self.per_client
        pieces, left = divmod(num_shards, len(runs))
        message = f"`per_client`={self.per_client} for {num_clients} clients makes {num_shards} shards"
        require(not left, f"{message}; `mode`={self.mode!r} needs a multiple of the {num_classes} classes.")
        require(pieces <= runs.min(), f"{message}, {pieces} of them to be cut from {runs.min()} samples.")
        # round(i n / pieces) in integers: shards of floor(n / pieces) would drift across the class borders of CIFAR
        ends = (2 * np.arange(pieces + 1) * runs[:, None] + pieces) // (2 * pieces)
        sizes = np.diff(ends, axis=1).ravel()
        owner_of_shard = self._owners(num_clients, num_shards, pieces, seed)
        owner_of_sample = np.repeat(owner_of_shard, sizes)
        by_label = np.argsort(labels, kind="stable")
        parts = grouped(by_label, owner_of_sample, num_clients)
        return _kept(parts, self.samples_per_client, seed)

    def _owners(self, num_clients: int, num_shards: int, pieces: int, seed: int) -> np.ndarray:
        """Who gets each shard; those of one class, `pieces` of them, lie side by side."""
        rng = stream(seed, "gets")
        if self.mode != "distinct":
            return rng.permutation(num_shards) // self.per_client
        num_classes = num_shards // pieces
        wanted = f"`per_client`={self.per_client} different classes for each client"
        require(pieces <= num_clients, f"{wanted}, but `mode`='distinct' has only {num_classes} classes to give.")
        return _distinct_owners(rng, num_clients, num_classes, pieces)


class BinarySeparated(Partition):
    """Classes in two disjoint halves; even clients share the first, odd clients the second (FedMMD: two clients).

    Args:
        split: ``halves`` is 0-4 and 5-9, ``even_odd`` goes by parity, ``random`` draws the halves by the seed.
        resplit_every_round: Draw new halves each round, as the authors' code does; the paper reads as fixed halves.
    """

    def __init__(self, split: Halves = "halves", resplit_every_round: bool = False) -> None:
        check_choice("split", split, Halves)
        self.split = split
        self.resplit_every_round = resplit_every_round
        redraws = split == "random" or not resplit_every_round
        require(redraws, f"`resplit_every_round` draws new halves and needs `split`='random', got {split!r}.")

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        labels = checked_labels(labels, num_clients, num_classes)
        require(num_clients >= 2, f"`num_clients` must be at least 2, one for each half, got {num_clients}.")
        half = self._half(num_classes, seed)
        rng = stream(seed, "samples")
        parts = [labels] * num_clients  # each is replaced below
        for side in (0, 1):
            samples = np.flatnonzero(half[labels] == side)
            num_sharers = len(parts[side::2])
            enough(len(samples), num_sharers, "num_clients")
            parts[side::2] = np.array_split(rng.permutation(samples), num_sharers)
        return parts

    def _half(self, num_classes: int, seed: int) -> np.ndarray:
        """In which half each class lies, 0 or 1, ``[C]``."""
        rank = np.arange(num_classes)
        if self.split == "even_odd":
            return rank % 2
        if self.split == "random":
            rank = stream(seed, "gets").permutation(num_classes)
        return (rank >= num_classes // 2).astype(np.int64)

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray:
        half = self._half(len(class_sizes), seed)
        sides = np.arange(num_clients) % 2
        return row_shares(class_sizes * (half == sides[:, None]))


class ClassSets(Partition):
    """Draw a class of the client's set, all equally likely, then one of its samples with replacement (DLAD).

    Args:
        sets: A setting of the paper, whose five sets repeat over clients, or class lists that repeat likewise.
        samples_per_client: How many draws each; clients overlap and hold duplicates.
    """

    def __init__(self, sets: SetName | list[list[int]] = "niid1", samples_per_client: int = 5000) -> None:
        if isinstance(sets, str):
            check_choice("sets", sets, SetName)
        else:
            check_kind("sets", sets, list, "a setting or class lists")
            filled = len(sets) > 0 and all(sets)
            require(filled, f"`sets` must hold class lists, none of them empty, got {sets}.")
        self.sets = sets
        self.samples_per_client: int = check_count("samples_per_client", samples_per_client)

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        labels = checked_labels(labels, num_clients, num_classes)
        draws = num_clients * self.samples_per_client
        message = f"`samples_per_client`={self.samples_per_client} for {num_clients} clients"
        require(draws <= MOST_DRAWS, f"{message} is {draws} draws; at most {MOST_DRAWS} can be held.")
        sets = self._class_lists(num_classes)
        sizes = np.bincount(labels, minlength=num_classes)
        absent = {c for classes in sets for c in classes}.difference(np.flatnonzero(sizes).tolist())
        require(not absent, f"`sets`={self.sets} names classes without samples here: {sorted(absent)}.")
        by_label = np.argsort(labels, kind="stable")
        first = np.cumsum(sizes) - sizes  # where each class begins in it
        rng = stream(seed, "samples")
        parts = []
        for k in range(num_clients):  # one after the other, so that client k holds the same however many follow
            c = rng.choice(sets[k % len(sets)], self.samples_per_client)
            parts.append(by_label[first[c] + rng.integers(sizes[c])])
        return parts

    def _class_lists(self, num_classes: int) -> list[list[int]]:
        if not isinstance(self.sets, str):
            return self.sets
        if self.sets == "iid":
            return [list(range(num_classes))]
        return CLASS_SETS[self.sets]

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray:
        sets = self._class_lists(len(class_sizes))
        members = np.zeros((num_clients, len(class_sizes)))
        for k in range(num_clients):
            np.add.at(members[k], sets[k % len(sets)], 1)  # a class that is named twice is twice as likely
        return row_shares(members)


class Majority(Partition):
    """Most of a client's data come from its own ``m`` classes, the rest evenly from all others, all disjoint (MoE).

    Args:
        p: Share of the majority classes, in [0, 1]; 1 is nothing else, ``m / C`` is IID.
        samples_per_client: ``n``, majority and rest together.
        majority_classes: ``m``; clients have the next ``m`` classes each, disjoint while they last.
        pairs: The classes are ``drawn`` by the seed, as in the authors' runs, or ``fixed``: client k has
            ``m k, ..., m k + m - 1`` modulo C.
    """

    def __init__(
        self, p: float = 0.9, samples_per_client: int = 500, majority_classes: int = 2, pairs: Pairs = "drawn"
    ) -> None:
        self.p = check_share("p", p)
        self.samples_per_client: int = check_count("samples_per_client", samples_per_client)
        self.majority_classes = check_count("majority_classes", majority_classes)
        check_choice("pairs", pairs, Pairs)
        self.pairs = pairs

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        labels = checked_labels(labels, num_clients, num_classes)
        counts = self._counts(num_clients, num_classes, seed)
        needed = counts.sum(axis=1)
        there = np.bincount(labels, minlength=num_classes)
        c = (needed - there).argmax()  # the class that is shortest of samples
        message = f"`samples_per_client`={self.samples_per_client} for {num_clients} clients"
        require(needed[c] <= there[c], f"{message} needs {needed[c]} samples of class {c}, there are {there[c]}.")
        return _dealt(labels, counts, seed)

    def _counts(self, num_clients: int, num_classes: int, seed: int) -> np.ndarray:
        """How many samples of each class each client gets, ``[C, K]``."""
        n = self.samples_per_client
        m = self.majority_classes
        others = num_classes - m
        require(others > 0, f"`majority_classes` must be below the number of classes, {num_classes}, got {m}.")
        major = round(self.p * n)
        rng = stream(seed, "gets")
        counts = np.zeros((num_classes, num_clients), dtype=np.int64)
        order = self._order(num_classes, seed)
        for k in range(num_clients):
            classes = np.roll(order, -k * m)
            counts[classes[:m], k] = _even_parts(major, m)
            counts[rng.permutation(classes[m:]), k] = _even_parts(n - major, others)
        return counts

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray:
        num_classes = len(class_sizes)
        m = self.majority_classes
        p = np.full((num_clients, num_classes), (1 - self.p) / (num_classes - m))
        order = self._order(num_classes, seed)
        for k in range(num_clients):
            p[k, np.roll(order, -k * m)[:m]] = self.p / m
        return p

    def _order(self, num_classes: int, seed: int) -> np.ndarray:
        """The classes in the order in which clients have their majorities of them, ``[C]``."""
        if self.pairs == "fixed":
            return np.arange(num_classes)
        return stream(seed, "majorities").permutation(num_classes)


class Dirichlet(Partition):
    """Each class falls to the clients in proportions ~ Dir(alpha); every sample is used once.

    Args:
        alpha: Above 0; small gives each class to few clients, large is IID.
        min_samples: What each client holds at least. A client that is short takes from the class it drew most of, where
            most is held: drawing again would depend on the labels, and give other proportions on the test set.
    """

    def __init__(self, alpha: float = 0.5, min_samples: int = 1) -> None:
        self.alpha = check_positive("alpha", alpha, SMALLEST_ALPHA)
        self.min_samples = check_count("min_samples", min_samples, least=0)

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        labels = checked_labels(labels, num_clients, num_classes)
        enough(len(labels), num_clients, "min_samples", self.min_samples)
        log_q = self.log_proportions(num_clients, num_classes, seed)
        sizes = np.bincount(labels, minlength=num_classes)[:, None]
        shares_so_far = np.cumsum(np.exp(log_q), axis=1)
        ends = np.minimum(np.rint(shares_so_far * sizes).astype(np.int64), sizes)
        ends[:, -1:] = sizes
        counts = np.diff(ends, axis=1, prepend=0)
        top_up(counts, log_q, self.min_samples)
        return _dealt(labels, counts, seed)

    def log_proportions(self, num_clients: int, num_classes: int, seed: int) -> np.ndarray:
        """Logarithms of the clients' shares of each class, ``[C, K]``."""
        return log_dirichlet(stream(seed, "gets"), self.alpha, (num_classes, num_clients))

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray:
        q = np.exp(self.log_proportions(num_clients, len(class_sizes), seed))
        return row_shares((q * class_sizes[:, None]).T)


def _even_parts(total: int, number: int) -> np.ndarray:
    """Numbers that differ by at most one and add up to `total`, the smaller first."""
    return (total + np.arange(number)) // number


def _dealt(labels: np.ndarray, counts: np.ndarray, seed: int) -> list[np.ndarray]:
    """Random disjoint samples, `counts` ``[C, K]`` of each class for each client."""
    num_classes, num_clients = counts.shape
    rng = stream(seed, "samples")
    taken = []
    for c in range(num_classes):
        members = rng.permutation(np.flatnonzero(labels == c))
        taken.append(members[: counts[c].sum()])
    owners = np.repeat(np.tile(np.arange(num_clients), num_classes), counts.ravel())
    return grouped(np.concatenate(taken), owners, num_clients)


def _kept(parts: list[np.ndarray], samples_per_client: int | None, seed: int) -> list[np.ndarray]:
    """So many samples of each client's part, drawn at random; None keeps all."""
    if samples_per_client is None:
        return parts
    some = []
    for client, part in enumerate(parts):
        message = f"`samples_per_client`={samples_per_client}, but the shards of client {client} hold {len(part)}."
        require(samples_per_client <= len(part), message)
        order = stream(seed, "kept", client).permutation(len(part))
        some.append(part[np.sort(order[:samples_per_client])])
    return some


def _distinct_owners(rng: np.random.Generator, num_clients: int, num_classes: int, pieces: int) -> np.ndarray:
    """The owners of `pieces` shards of each class, ``[C pieces]``: equally many each, no two of a class for one client.

    Class by class, in random order. Who needs a shard of every class that is left gets one for sure: at most `pieces`
    clients do, for together all need as many as there are. So it always comes out even.
    """
    needs = np.full(num_clients, num_classes * pieces // num_clients)
    owners = np.empty((num_classes, pieces), dtype=np.int64)
    for position, c in enumerate(rng.permutation(num_classes)):
        rank = rng.random(num_clients)
        rank[needs == num_classes - position] = -1
        rank[needs == 0] = 2
        owners[c] = np.argsort(rank, kind="stable")[:pieces]
        needs[owners[c]] -= 1
    return owners.ravel()
