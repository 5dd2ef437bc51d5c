"""Who holds what once the samples are dealt out: validation splits, opt-out marks, and the CSV that keeps it all.

Laws: no copy of a sample is on both sides of a split; an `Assignment` that is written is what `Saved` reads back.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from fedlit.partition import Partition, grouped, require, stream

HEADER, ROW_SPLITS = "client,split,index,label,shared", ("train", "val_train", "val_test")


@dataclass(frozen=True)
class Assignment:
    """Who holds what: `val` indexes `val_split`, `opted_in` (bool) is aligned with `train`."""

    train: list[np.ndarray]
    val: list[np.ndarray]
    val_split: Literal["train", "test"]
    opted_in: list[np.ndarray]

    @property
    def num_clients(self) -> int:
        return len(self.train)

    def class_counts(self, train_labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Training samples of each class at each client, ``[K, C]``."""
        return np.stack([np.bincount(train_labels[indices], minlength=num_classes) for indices in self.train])

    def write(self, path: Path, train_labels: np.ndarray, test_labels: np.ndarray | None = None) -> None:
        """Save as the CSV that `Saved` reads; validation rows have ``shared`` 0, since no upload learns from them."""
        val_labels = train_labels if self.val_split == "train" else test_labels
        rows = [HEADER]
        for k, (train, val, shared) in enumerate(zip(self.train, self.val, self.opted_in, strict=True)):
            rows += [f"{k},train,{i},{y},{s:d}" for i, y, s in zip(train, train_labels[train], shared, strict=True)]
            rows += [f"{k},val_{self.val_split},{i},{val_labels[i]},0" for i in val]
        partial = Path(f"{path}.{os.getpid()}.tmp")  # in the same folder: os.replace is atomic only there
        partial.write_text("\n".join(rows) + "\n", encoding="utf-8")
        os.replace(partial, path)


class Saved(Partition):
    """An assignment from a file, as `Assignment.write` leaves it.

    Args:
        path: A CSV with header ``client,split,index,label,shared``; split is train, val_train or val_test (validation
            from the training or the test set), shared is 1 for an opted-in sample, else 0.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        raise ValueError(f"`Saved` holds a ready assignment: read() {self.path} instead of assigning it.")

    def read(self, train_labels: np.ndarray, test_labels: np.ndarray) -> Assignment:
        """The assignment in the file, whose indices and label column must be those of the data set."""
        require(Path(self.path).is_file(), f"`path` must be a saved partition, there is no file {self.path}.")
        header, *lines = Path(self.path).read_text(encoding="utf-8").splitlines() or [""]
        require(header == HEADER and lines, f"{self.path}, line 1: expected {HEADER!r} and rows, got {header!r}.")
        k, split, index, label, shared = np.array([self._row(i, line) for i, line in enumerate(lines, start=2)]).T
        train, mixed = split == 0, (split == 1) & (split.max() == 2)
        require(not mixed.any(), f"{self.path}, line {mixed.argmax() + 2}: val_train in a file that has val_test.")
        gap = next(i for i, held in enumerate([*np.unique(k[train]), -1]) if held != i)
        require(gap > k.max(), f"{self.path}, line {(k >= gap).argmax() + 2}: client {gap} is without train rows.")
        for name, rows, labels in (("training", split < 2, train_labels), ("test", split == 2, test_labels)):
            self._compare(name, np.flatnonzero(rows), index[rows], label[rows], np.asarray(labels))
        parts = [grouped(x[rows], k[rows], gap) for x, rows in ((index, train), (index, ~train), (shared > 0, train))]
        return Assignment(parts[0], parts[1], "test" if split.max() == 2 else "train", parts[2])

    def _compare(self, name: str, rows: np.ndarray, index: np.ndarray, label: np.ndarray, labels: np.ndarray) -> None:
        beyond = index >= len(labels)
        if beyond.any():
            i = beyond.argmax()
            told = f"index {index[i]}, but the {name} set has {len(labels)} samples"
            raise ValueError(f"{self.path}, line {rows[i] + 2}: {told}; was it saved with another data set?")
        differs = labels[index] != label
        if differs.any():
            i = differs.argmax()
            told = f"label {label[i]}, but sample {index[i]} of the {name} set has label {labels[index[i]]}"
            raise ValueError(f"{self.path}, line {rows[i] + 2}: {told}; was it saved with another data set?")

    def _row(self, number: int, line: str) -> tuple[int, ...]:
        try:
            client, split, index, label, shared = line.split(",")
            row = int(client), ROW_SPLITS.index(split), int(index), int(label), ("0", "1").index(shared)
            if min(row) >= 0 and max(row) < 2**63:  # beyond, numpy would make the columns objects
                return row
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
        opt_out: Fraction of clients (rounded down, drawn by `seed`) or ids of those whose samples are all withheld.
        opt_out_samples: Fraction of every other client's samples withheld; copies of a sample go together.
        seed: Draws both.
    """
    num_clients, out = len(train), opt_out
    require(0 <= opt_out_samples <= 1, f"`opt_out_samples` must lie in [0, 1], got {opt_out_samples}.")
    if isinstance(opt_out, list):
        known = set(opt_out) <= set(range(num_clients))
        require(known, f"`opt_out` must hold client ids from 0 to {num_clients - 1}, got {opt_out}.")
    else:
        require(0 <= opt_out <= 1, f"`opt_out` must be a fraction in [0, 1] or a list of client ids, got {opt_out}.")
        number = int(opt_out * num_clients + 1e-9)  # 0.29 * 100 is 28.999999999999996
        out = stream(seed, "opt_out").permutation(num_clients)[:number].tolist()
    out, rng = set(out), stream(seed, "opt_out_samples")
    withheld = [_drawn(indices, round(opt_out_samples * len(indices)), rng) for indices in train]
    return [~mask & (k not in out) for k, mask in enumerate(withheld)]


def split_validation(
    train: list[np.ndarray], labels: np.ndarray, val_size: float | int, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Hold back some of each client's samples at random, never a copy of one that stays: training, validation.

    Args:
        train: Indices per client into `labels`.
        labels: Of the training set.
        val_size: A fraction in (0, 1), of which ``round(val_size * n)`` samples are held back, or their number.
        seed: Draws them.
    """
    whole = val_size >= 1 and val_size == int(val_size)
    require(0 < val_size < 1 or whole, f"`val_size` must be a fraction in (0, 1) or a number from 1, got {val_size}.")
    rng, kept, held = stream(seed, "val"), [], []
    for k, indices in enumerate(train):
        require(indices.max(initial=-1) < len(labels), f"client {k} holds an index beyond the {len(labels)} labels.")
        mask = _drawn(indices, int(val_size) if whole else round(val_size * len(indices)), rng)
        require(not mask.all(), f"`val_size`={val_size} leaves client {k} none of its {len(indices)} training samples.")
        kept.append(indices[~mask])
        held.append(indices[mask])
    return kept, held


def split_off(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split all indices at random into the rest and a pool with `fraction`, in (0, 1), of each class; both sorted."""
    require(0 < fraction < 1, f"`fraction` must lie in (0, 1), got {fraction}.")
    labels, rng, pooled = np.asarray(labels), stream(seed, "pool"), np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        pooled[rng.permutation(members)[: round(fraction * len(members))]] = True
    return np.flatnonzero(~pooled), np.flatnonzero(pooled)


def _drawn(indices: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A random mask of `count` samples. Copies of one sample stay together, so it may hold a few more."""
    _, which, copies = np.unique(indices, return_inverse=True, return_counts=True)
    order = rng.permutation(len(copies))
    taken = np.zeros(len(copies), dtype=bool)
    taken[order[np.cumsum(copies[order]) - copies[order] < count]] = True
    return taken[which]
