"""Who holds what once the samples are dealt out: validation splits, opt-out marks, and the CSV that keeps it all.

Invariants: no copy of a sample is on both sides of a split; an `Assignment` that is written is what
`Saved` reads back.
"""

import os
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.data.items import describe
from fedlit.data.splits import Splits, split_off
from fedlit.partition import Partition
from fedlit.partition.base import grouped, require
from fedlit.rng import derive, stream

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData


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

    @cached_property
    def num_opted_in(self) -> list[int]:
        """Opted-in training samples of each client."""
        return [int(np.count_nonzero(mask)) for mask in self.opted_in]

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
                rows.append(f"{k},train,{i},{_label_text(train_labels[i])},{is_in:d}")
            for i in val:
                rows.append(f"{k},val_{self.val_split},{i},{_label_text(val_labels[i])},0")
        for k, indices in enumerate(self.own_test):
            rows += [f"{k},own_test,{i},{_label_text(np.asarray(test_labels)[i])},0" for i in indices]
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
            message = f"index {index[row]}, but the {name} set has {len(labels)} samples"
            raise ValueError(f"{self.path}, line {_line(beyond)}: {message}; was it saved with another data set?")
        differs = np.zeros(len(rows), dtype=bool)
        differs[rows] = labels[index[rows]] != label[rows]
        if differs.any():
            row = differs.argmax()
            own = _label_text(labels[index[row]]) or "none"
            saved = _label_text(label[row]) or "none"
            message = f"label {saved}, but sample {index[row]} of the {name} set has label {own}"
            raise ValueError(f"{self.path}, line {_line(differs)}: {message}; was it saved with another data set?")

    def _row(self, number: int, line: str) -> tuple[int, ...]:
        try:
            client, split, index, label, shared = line.split(",")
            row = int(client), ROW_SPLITS.index(split), int(index), int(label or 0), ("0", "1").index(shared)
            if min(row) >= 0 and max(row) < 2**63:  # beyond, numpy would make the columns objects
                return row if label else (*row[:3], -1, row[4])
        except ValueError:
            pass  # reported below, with the file and the line
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
        return set(opt_out)
    number = int(opt_out * num_clients + 1e-9)  # 0.29 * 100 is 28.999999999999996
    return set(stream(seed, "opt_out").permutation(num_clients)[:number].tolist())


def split_validation(
    train: list[np.ndarray], val_size: float | int, seed: int
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Hold back some of each client's samples at random, never a copy of one that stays: training, validation.

    Args:
        train: Indices per client.
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
        count = int(val_size)
        if not whole:
            count = round(val_size * num_samples)
        mask = _drawn(indices, count, rng)
        require(not mask.all(), f"`val_size`={val_size} leaves client {k} none of its {num_samples} training samples.")
        kept.append(indices[~mask])
        held.append(indices[mask])
    return kept, held


def _drawn(indices: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """A random mask of `count` samples. Copies of one sample stay together, so it may hold a few more."""
    _, which, copies = np.unique(indices, return_inverse=True, return_counts=True)
    order = rng.permutation(len(copies))
    drawn_before = np.cumsum(copies[order]) - copies[order]
    taken = np.zeros(len(copies), dtype=bool)
    taken[order[drawn_before < count]] = True
    return taken[which]


def _label_text(label: int) -> str:
    return "" if label == -1 else str(label)


def _line(rows: np.ndarray) -> int:
    """The line of the file in which the first of the marked rows stands, after the header."""
    return int(rows.argmax()) + 2


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
            self._refuse_without_classes(describe(splits.train.example[1], of_many=True))

    def _refuse_without_classes(self, target: str) -> None:
        kind = type(self.partition)
        remedy = "take IID, Quantity or ByColumn"
        if not kind.__module__.startswith("fedlit."):
            remedy = "if it looks at no label, set its `by_class = False`"
        message = f"{kind.__name__} deals samples out by their classes, but their targets are {target}"
        raise ValueError(f"`data.partition`: {message}; {remedy}.")

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
            train, val = split_validation(held, options.val_size, self._seed("val"))
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
    message = f"`data.partition`: `assign` of {type(partition).__name__} must give {num_clients} arrays of indices"
    if not isinstance(parts, list | tuple) or len(parts) != num_clients:
        got = len(parts) if isinstance(parts, list | tuple) else f"a {type(parts).__name__}"
        raise ValueError(f"{message}, one per client, got {got}.")
    found = []
    for k, part in enumerate(parts):
        indices = np.asarray(part)
        if indices.size == 0:
            indices = indices.astype(np.int64)
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ValueError(f"{message}, got {indices.dtype} {list(indices.shape)} for client {k}.")
        if indices.size and not 0 <= indices.min() <= indices.max() < num_samples:
            ends = f"{indices.min()} to {indices.max()}"
            message = f"{message} into the {num_samples} labels that it is given, got {ends} for client {k}"
            raise ValueError(f"{message}; test samples are dealt out by a call of their own.")
        found.append(indices.astype(np.int64, copy=False))
    return found


class Owners:
    """Clients by their names, numbered in the order of these: by number if all are whole ones, else as text.

    Args:
        splits: Training samples, which all say whose they are, and test samples, which may.
        num_clients: As the user has it.

    Attributes:
        names: Of the clients.
    """

    def __init__(self, splits: Splits, num_clients: int) -> None:
        if splits.train.owners is None:
            raise ValueError(_untold("training", "clients"))
        given = {"train": splits.train.owners}
        if splits.test.owners is not None:
            given["test"] = splits.test.owners
        self._of = _as_names(given)
        names = np.unique(self._of["train"])
        self._names = names
        self.names: list[str] = [str(name) for name in names]
        if len(names) != num_clients:
            message = f"`data.num_clients` is {num_clients}, but training samples are of {len(names)} clients"
            raise ValueError(f"{message}; set it to {len(names)}.")

    def of(self, which: Literal["train", "test"]) -> np.ndarray:
        """The number of each sample's client, ``[N]``."""
        if which not in self._of:
            raise ValueError(_untold("test", "test_clients"))
        strange = np.setdiff1d(self._of[which], self._names)
        if len(strange):
            raise ValueError(f"a test sample is of client {str(strange[0])!r}, who has no training samples.")
        return np.searchsorted(self._names, self._of[which])


def _untold(which: str, option: str) -> str:
    message = f"nobody says whose the {which} samples are: name their column in `data.client`"
    return f"`data.partition`: {message}, or give `{option}` of ByColumn."


def _as_names(given: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As numbers if all are whole ones, so that 10 comes after 9."""
    texts = {part: owners.astype(str) for part, owners in given.items()}
    try:
        return {part: owners.astype(np.int64) for part, owners in texts.items()}
    except (ValueError, OverflowError):
        return texts
