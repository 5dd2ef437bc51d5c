"""Who holds what once the samples are dealt out: validation splits, opt-out marks, and the CSV that keeps it all.

Laws: no copy of a sample is on both sides of a split; an `Assignment` that is written is what
`Saved` reads back.
"""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from fedlit.dealing import grouped, require
from fedlit.partition import Partition
from fedlit.rng import stream

HEADER = "client,split,index,label,shared"
ROW_SPLITS = ("train", "val_train", "val_test", "own_test")
TRAIN, VAL_TRAIN, VAL_TEST, OWN_TEST = range(4)  # their places


@dataclass(frozen=True)
class Assignment:
    """Who holds what: `val` indexes `val_split`, `opted_in` (bool) is aligned with `train`.

    `own_test` indexes the test set: what no choice may look at; an empty list if clients have none.
    """

    train: list[np.ndarray]
    val: list[np.ndarray]
    val_split: Literal["train", "test"]
    opted_in: list[np.ndarray]
    own_test: list[np.ndarray] = field(default_factory=list)

    @property
    def num_clients(self) -> int:
        return len(self.train)

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of each client, ``[K]``."""
        return np.array([len(indices) for indices in self.train])

    def class_counts(self, train_labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Training samples of each class at each client, ``[K, C]``."""
        counts = [np.bincount(train_labels[indices], minlength=num_classes) for indices in self.train]
        return np.stack(counts)

    def write(self, path: Path, train_labels: np.ndarray, test_labels: np.ndarray | None = None) -> None:
        """Save as the CSV that `Saved` reads; validation rows have ``shared`` 0, since no upload learns from them.

        A label of -1, of samples that have no class, is left empty.
        """
        val_labels = train_labels
        if self.val_split == "test" or self.own_test:
            require(test_labels is not None, "`test_labels` must be given: some samples are of the test set.")
        if self.val_split == "test":
            val_labels = np.asarray(test_labels)
        rows = [HEADER]
        for k, (train, val, opted_in) in enumerate(zip(self.train, self.val, self.opted_in, strict=True)):
            for i, is_in in zip(train, opted_in, strict=True):
                rows.append(f"{k},train,{i},{_told(train_labels[i])},{is_in:d}")
            for i in val:
                rows.append(f"{k},val_{self.val_split},{i},{_told(val_labels[i])},0")
        for k, indices in enumerate(self.own_test):
            rows += [f"{k},own_test,{i},{_told(np.asarray(test_labels)[i])},0" for i in indices]
        partial = Path(f"{path}.{os.getpid()}.tmp")  # in the same folder: os.replace is atomic only there
        partial.write_text("\n".join(rows) + "\n", encoding="utf-8")
        os.replace(partial, path)


class Saved(Partition):
    """An assignment from a file, as `Assignment.write` leaves it.

    Args:
        path: A CSV with header ``client,split,index,label,shared``; split is train, val_train or
            val_test (validation from the training or the test set) or own_test (of the test set,
            see `data.own_test`), label is empty where targets are no classes, shared is 1 for an opted-in
            sample, else 0.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        raise ValueError(f"`Saved` holds a ready assignment: read() {self.path} instead of assigning it.")

    def read(self, train_labels: np.ndarray, test_labels: np.ndarray) -> Assignment:
        """The assignment in the file, whose indices and label column must be those of the data set."""
        require(Path(self.path).is_file(), f"`path` must be a saved partition, there is no file {self.path}.")
        header, *lines = Path(self.path).read_text(encoding="utf-8").splitlines() or [""]
        good = header == HEADER and bool(lines)
        require(good, f"{self.path}, line 1: expected {HEADER!r} and rows, got {header!r}.")
        rows = [self._row(number, line) for number, line in enumerate(lines, start=2)]
        k, split, index, label, shared = np.array(rows).T
        in_train = split == TRAIN
        in_val = (split == VAL_TRAIN) | (split == VAL_TEST)
        in_own_test = split == OWN_TEST
        in_test_set = in_own_test | (split == VAL_TEST)
        val_split: Literal["train", "test"] = "train"
        if (split == VAL_TEST).any():
            val_split = "test"
            mixed = split == VAL_TRAIN
            require(not mixed.any(), f"{self.path}, line {_line(mixed)}: val_train in a file that has val_test.")
        num_clients = self._num_clients(k, in_train)
        self._compare("training", ~in_test_set, index, label, np.asarray(train_labels))
        self._compare("test", in_test_set, index, label, np.asarray(test_labels))
        return Assignment(
            train=grouped(index[in_train], k[in_train], num_clients),
            val=grouped(index[in_val], k[in_val], num_clients),
            val_split=val_split,
            opted_in=grouped(shared[in_train] > 0, k[in_train], num_clients),
            own_test=grouped(index[in_own_test], k[in_own_test], num_clients) if in_own_test.any() else [],
        )

    def _num_clients(self, k: np.ndarray, in_train: np.ndarray) -> int:
        """Clients in the file, which must all have training samples."""
        with_samples = set(k[in_train].tolist())
        num_clients = 0
        while num_clients in with_samples:
            num_clients += 1
        beyond = k >= num_clients
        require(not beyond.any(), f"{self.path}, line {_line(beyond)}: client {num_clients} is without train rows.")
        return num_clients

    def _compare(self, name: str, rows: np.ndarray, index: np.ndarray, label: np.ndarray, labels: np.ndarray) -> None:
        """The chosen rows tell samples and labels of a data set that has these `labels`."""
        beyond = rows & (index >= len(labels))
        if beyond.any():
            row = beyond.argmax()
            told = f"index {index[row]}, but the {name} set has {len(labels)} samples"
            raise ValueError(f"{self.path}, line {_line(beyond)}: {told}; was it saved with another data set?")
        differs = np.zeros(len(rows), dtype=bool)
        differs[rows] = labels[index[rows]] != label[rows]
        if differs.any():
            row = differs.argmax()
            own = _told(labels[index[row]]) or "none"
            told = f"label {_told(label[row]) or 'none'}, but sample {index[row]} of the {name} set has label {own}"
            raise ValueError(f"{self.path}, line {_line(differs)}: {told}; was it saved with another data set?")

    def _row(self, number: int, line: str) -> tuple[int, ...]:
        try:
            client, split, index, label, shared = line.split(",")
            row = int(client), ROW_SPLITS.index(split), int(index), int(label or 0), ("0", "1").index(shared)
            if min(row) >= 0 and max(row) < 2**63:  # beyond, numpy would make the columns objects
                return row if label else (*row[:3], -1, row[4])
        except ValueError:
            pass  # told below, with the file and the line
        wanted = f"{HEADER} with whole numbers from 0 and below 2**63, split in {ROW_SPLITS}, shared 0 or 1"
        raise ValueError(f"{self.path}, line {number}: expected {wanted}, got {line!r}.")


def opt_in_masks(
    train: list[np.ndarray], opt_out: float | list[int], opt_out_samples: float, seed: int
) -> list[np.ndarray]:
    """Which samples may shape an upload: one bool array per client, aligned with `train`.

    Args:
        train: Indices per client.
        opt_out: Fraction of clients (rounded down, drawn by `seed`) or ids of those whose samples
            are all withheld.
        opt_out_samples: Fraction of every other client's samples withheld; copies of a sample go
            together.
        seed: Draws both.
    """
    require(0 <= opt_out_samples <= 1, f"`opt_out_samples` must lie in [0, 1], got {opt_out_samples}.")
    out = _opted_out(opt_out, len(train), seed)
    rng = stream(seed, "opt_out_samples")
    masks = []
    for k, indices in enumerate(train):
        withheld = _drawn(indices, round(opt_out_samples * len(indices)), rng)
        masks.append(~withheld & (k not in out))
    return masks


def _opted_out(opt_out: float | list[int], num_clients: int, seed: int) -> set[int]:
    """Clients that share nothing."""
    if isinstance(opt_out, list):
        known = set(opt_out) <= set(range(num_clients))
        require(known, f"`opt_out` must hold client ids from 0 to {num_clients - 1}, got {opt_out}.")
        return set(opt_out)
    require(0 <= opt_out <= 1, f"`opt_out` must be a fraction in [0, 1] or a list of client ids, got {opt_out}.")
    number = int(opt_out * num_clients + 1e-9)  # 0.29 * 100 is 28.999999999999996
    return set(stream(seed, "opt_out").permutation(num_clients)[:number].tolist())


def split_validation(
    train: list[np.ndarray], labels: np.ndarray, val_size: float | int, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Hold back some of each client's samples at random, never a copy of one that stays: training, validation.

    Args:
        train: Indices per client into `labels`.
        labels: Of the training set.
        val_size: A fraction in (0, 1), of which ``round(val_size * n)`` samples are held back, or
            their number.
        seed: Draws them.
    """
    whole = val_size >= 1 and val_size == int(val_size)
    require(0 < val_size < 1 or whole, f"`val_size` must be a fraction in (0, 1) or a number from 1, got {val_size}.")
    rng = stream(seed, "val")
    kept = []
    held = []
    for k, indices in enumerate(train):
        num_samples = len(indices)
        require(indices.max(initial=-1) < len(labels), f"client {k} holds an index beyond the {len(labels)} labels.")
        count = int(val_size)
        if not whole:
            count = round(val_size * num_samples)
        mask = _drawn(indices, count, rng)
        require(not mask.all(), f"`val_size`={val_size} leaves client {k} none of its {num_samples} training samples.")
        kept.append(indices[~mask])
        held.append(indices[mask])
    return kept, held


def split_off(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split all indices at random into the rest and a pool with `fraction`, in (0, 1), of each class; both sorted."""
    require(0 < fraction < 1, f"`fraction` must lie in (0, 1), got {fraction}.")
    labels = np.asarray(labels)
    rng = stream(seed, "pool")
    pooled = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        number = round(fraction * len(members))
        pooled[rng.permutation(members)[:number]] = True
    return np.flatnonzero(~pooled), np.flatnonzero(pooled)


def _drawn(indices: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A random mask of `count` samples. Copies of one sample stay together, so it may hold a few more."""
    _, which, copies = np.unique(indices, return_inverse=True, return_counts=True)
    order = rng.permutation(len(copies))
    drawn_before = np.cumsum(copies[order]) - copies[order]
    taken = np.zeros(len(copies), dtype=bool)
    taken[order[drawn_before < count]] = True
    return taken[which]


def _told(label: int) -> str:
    return "" if label == -1 else str(label)


def _line(rows: np.ndarray) -> int:
    """The line of the file in which the first of the marked rows stands, after the header."""
    return int(rows.argmax()) + 2
