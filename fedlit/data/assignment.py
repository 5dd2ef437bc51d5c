"""Which client holds which samples: validation splits, opt-out marks, and the CSV file of them.

Invariants: no copy of a sample is on both sides of a split; an `Assignment` that is written is what
`Saved` reads back.
"""

import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.data.items import describe
from fedlit.data.splits import Splits, labels_of, split_off
from fedlit.partition import Partition
from fedlit.partition.base import grouped, require
from fedlit.rng import derive, stream

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData

HEADER = "client,split,index,label,shared"
COLUMNS = [("client", "i8"), ("split", "U10"), ("index", "i8"), ("label", "U20"), ("shared", "i8")]
SPLITS = ("train", "val_train", "val_test", "own_test")
Split = Literal["train", "test"]


@dataclass(frozen=True)
class Assignment:
    """The samples of each client: `val` indexes `val_split`, `opted_in` (bool) is aligned with `train`.

    `own_test` indexes the test set, for scores only, never for model selection; `censored` indexes the censored copies
    that clients share (see `data.censor`). Both are empty lists if there are none.
    """

    train: list[np.ndarray]
    val: list[np.ndarray]
    val_split: Split
    opted_in: list[np.ndarray]
    own_test: list[np.ndarray] = field(default_factory=list)
    censored: list[np.ndarray] = field(default_factory=list)

    @property
    def num_clients(self) -> int:
        return len(self.train)

    def shared(self, client: int) -> np.ndarray:
        """Places of the samples that may shape a client's uploads: opted in, or censored copies."""
        opted_in = self.train[client][self.opted_in[client]]
        return np.concatenate([opted_in, self.censored[client]]) if self.censored else opted_in

    @cached_property
    def num_opted_in(self) -> list[int]:
        """How many samples may shape each client's uploads."""
        return [len(self.shared(k)) for k in range(self.num_clients)]

    @property
    def sizes(self) -> np.ndarray:
        """Training samples of each client, ``[K]``."""
        return np.array([len(indices) for indices in self.train])

    def class_counts(self, train_labels: np.ndarray, num_classes: int) -> np.ndarray:
        """Training samples of each class at each client, ``[K, C]``."""
        return np.stack([np.bincount(train_labels[indices], minlength=num_classes) for indices in self.train])

    def write(self, path: Path, train_labels: np.ndarray, test_labels: np.ndarray) -> None:
        """Save as the CSV that `Saved` reads; validation rows have ``shared`` 0, since no upload learns from them.

        A label of -1, of samples that have no class, is left empty.
        """
        val_labels = train_labels if self.val_split == "train" else test_labels
        rows = [HEADER]
        for k, train in enumerate(self.train):
            marked = zip(train, self.opted_in[k].astype(int), strict=True)
            rows += [f"{k},train,{i},{_text(train_labels[i])},{shared}" for i, shared in marked]
            rows += [f"{k},val_{self.val_split},{i},{_text(val_labels[i])},0" for i in self.val[k]]
        for k, indices in enumerate(self.own_test):
            rows += [f"{k},own_test,{i},{_text(test_labels[i])},0" for i in indices]
        partial = Path(f"{path}.{os.getpid()}.tmp")  # in the same folder: os.replace is atomic only there
        partial.write_text("\n".join(rows) + "\n", encoding="utf-8")
        os.replace(partial, path)


def _text(label: int) -> str:
    return "" if label == -1 else str(label)


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
        with open(self.path, encoding="utf-8") as file:
            header = file.readline().rstrip("\n")
            require(header == HEADER, f"{self.path}: the header must be {HEADER!r}, got {header!r}.")
            try:
                rows = np.loadtxt(file, delimiter=",", dtype=COLUMNS, ndmin=1)
                labels = np.where(rows["label"] == "", "-1", rows["label"]).astype(np.int64)
            except ValueError as error:
                raise ValueError(
                    f"{self.path} is no table of client, split, index, label and shared: {error}"
                ) from None
        split = rows["split"]
        known = np.isin(split, SPLITS) & np.isin(rows["shared"], (0, 1)) & (rows["client"] >= 0) & (rows["index"] >= 0)
        self._require(known, f"split must be one of {', '.join(SPLITS)}, shared 0 or 1, client and index from 0")
        clients = np.unique(rows["client"][split == "train"])
        num_clients = int((clients == np.arange(len(clients))).cumprod().sum())  # those without a gap
        self._require(rows["client"] < num_clients, f"client {num_clients} is without train rows")
        has_val_test = bool((split == "val_test").any())
        self._require((split != "val_train") | (not has_val_test), "val_train in a file that has val_test")
        in_test_set = np.isin(split, ("val_test", "own_test"))
        for name, mine, own in (("training", ~in_test_set, train_labels), ("test", in_test_set, test_labels)):
            saved = "was it saved with another data set"
            there = f"the {name} set has {len(own)} samples"
            self._require(~mine | (rows["index"] < len(own)), f"{there}, and none of this index ({saved}?)")
            is_same = np.ones(len(rows), dtype=bool)
            is_same[mine] = np.asarray(own)[rows["index"][mine]] == labels[mine]
            self._require(is_same, f"the sample has another label in the {name} set ({saved}?)")

        def held(column: str, *splits: str) -> list[np.ndarray]:
            chosen = rows[np.isin(split, splits)]
            return grouped(chosen[column], chosen["client"], num_clients)

        return Assignment(
            train=held("index", "train"),
            val=held("index", "val_train", "val_test"),
            val_split="test" if has_val_test else "train",
            opted_in=[shared > 0 for shared in held("shared", "train")],
            own_test=held("index", "own_test") if (split == "own_test").any() else [],
        )

    def _require(self, good: np.ndarray, message: str) -> None:
        """Refuse the first row that is not good, by its line; the header is line 1."""
        require(bool(good.all()), f"{self.path}, line {int(good.argmin()) + 2}: {message}.")


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
    out = opted_out_clients(opt_out, len(train), seed)
    rng = stream(seed, "opt_out_samples")
    masks = []
    for k, indices in enumerate(train):
        withheld = _drawn(indices, round(opt_out_samples * len(indices)), rng)
        masks.append(~withheld & (k not in out))
    return masks


def opted_out_clients(opt_out: float | list[int], num_clients: int, seed: int) -> set[int]:
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
        n = len(indices)
        mask = _drawn(indices, int(val_size) if whole else round(val_size * n), rng)
        require(not mask.all(), f"`val_size`={val_size} leaves client {k} none of its {n} training samples.")
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


class Dealer:
    """Deals samples out to clients.

    Args:
        options: Of the data: partition, validation, opt-out and their seed.
        splits: What is dealt out; labels of the public pool are -1.
        private: Training samples that are not in the public pool, ``[N]``.

    Attributes:
        client_names: In the order of the clients' numbers, where samples name their client.
    """

    def __init__(self, options: "FederatedData", splits: Splits, private: np.ndarray) -> None:
        self.options = options
        self.partition = options.partition
        self.num_classes = splits.num_classes
        self.labels = {name: labels_of(splits.part(name)) for name in ("train", "test")}
        self.private = private
        self.client_names: list[str] | None = None
        self._owners: dict[str, np.ndarray] = {}
        if self.partition.by_owner:
            self._owners, self.client_names = _numbered_owners(splits, options.num_clients)
        if self.partition.by_class and not self.num_classes and not isinstance(self.partition, Saved):
            kind = type(self.partition)
            remedy = "take IID, Quantity or ByColumn"
            if not kind.__module__.startswith("fedlit."):
                remedy = "if it looks at no label, set its `by_class = False`"
            target = describe(splits.train.example[1], of_many=True)
            message = f"{kind.__name__} deals samples out by their classes, but their targets are {target}"
            raise ValueError(f"`data.partition`: {message}; {remedy}.")

    def assign(self, round: int) -> Assignment:
        """Deal the samples out; the round matters only to a partition that resplits or goes over time."""
        options = self.options
        if isinstance(self.partition, Saved):
            return self._with_copies(self._read_saved(self.partition))
        if self.partition.resplit_every_round and options.validation == "train":
            raise ValueError("`data.validation` must be test or reserve where clients change hands, got train.")
        seed = self._seed_of(round)
        if options.validation == "reserve":
            train, val = self._deal_with_reserve(seed)
        else:
            train = self._deal(self.partition, self.private, "train", seed)
            if options.validation == "train":
                train, val = split_validation(train, options.val_size, self._seed("val"))
            else:
                val = self.deal_test_set(round)
        opted_in = opt_in_masks(train, options.opt_out, options.opt_out_samples, self._seed("opt_out"))
        there = [self.partition.in_round(samples, round) for samples in train]
        return self._with_copies(
            Assignment(
                train=[samples[mask] for samples, mask in zip(train, there, strict=True)],
                val=val,
                val_split="test" if options.validation == "test" else "train",
                opted_in=[opted[mask] for opted, mask in zip(opted_in, there, strict=True)],
                own_test=self.deal_test_set(round) if options.own_test else [],
            )
        )

    def deal_test_set(self, round: int = 0) -> list[np.ndarray]:
        """Samples of the test set for each client, in the setting of its training samples."""
        number = len(self.labels["test"])
        scaled = self.partition.scaled(number / len(self.labels["train"]))
        return self._deal(scaled, np.arange(number), "test", self._seed_of(round))

    def class_probabilities(self, assignment: Assignment, round: int) -> np.ndarray | None:
        """The class probabilities of each client by the partition, ``[K, C]``; None where it defines none.

        Classes are weighed by shared samples only, since what is made of this may be uploaded.
        """
        if not self.num_classes:
            return None
        labels = self.labels["train"]
        shared = np.concatenate([assignment.shared(k) for k in range(assignment.num_clients)])
        class_sizes = np.bincount(labels[shared % len(labels)], minlength=self.num_classes)
        return self.partition.class_probabilities(class_sizes, self.options.num_clients, self._seed_of(round))

    def _with_copies(self, assignment: Assignment) -> Assignment:
        """With the censored copies of withheld samples, which come after all training samples."""
        options = self.options
        if not options.censor:
            return assignment
        out = opted_out_clients(options.opt_out, options.num_clients, self._seed("opt_out"))
        held = zip(assignment.train, assignment.opted_in, strict=True)
        behind = len(self.labels["train"])
        copies = [train[~mask & (k not in out)] + behind for k, (train, mask) in enumerate(held)]
        return replace(assignment, censored=copies)

    def _seed(self, *purpose: str | int) -> int:
        return derive(self.options.partition_seed, *purpose) % 2**32

    def _seed_of(self, round: int) -> int:
        """The partition's seed in a round."""
        return self._seed("partition", round if self.partition.resplit_every_round else 0)

    def _deal_with_reserve(self, seed: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Training and validation samples of each client, the latter from a reserve in the same setting."""
        fraction = self.options.val_size
        if not (isinstance(fraction, float) and 0 < fraction < 1):
            wanted = "with `data.validation: reserve` is a fraction in (0, 1)"
            raise ValueError(f"`data.val_size` {wanted}, got {fraction}.")
        labels = self.labels["train"][self.private]
        rest, reserve = split_off(labels, fraction, derive(self.options.partition_seed, "pool"))
        train = self._deal(self.partition, self.private[rest], "train", seed)
        scaled = self.partition.scaled(fraction / (1 - fraction))
        return train, self._deal(scaled, self.private[reserve], "train", seed)

    def _deal(self, partition: Partition, index: np.ndarray, split: Split, seed: int) -> list[np.ndarray]:
        if partition.by_owner:
            if split not in self._owners:
                raise ValueError(_owners_missing("test", "test_clients"))
            known = (self._owners[split][index] >= 0).all()
            require(bool(known), f"some {split} samples are of a client who has no training samples.")
            partition = partition.for_samples(self._owners[split][index])
        num_clients = self.options.num_clients
        parts = partition.assign(self.labels[split][index], num_clients, max(self.num_classes, 1), seed)
        return [index[part] for part in _checked(parts, num_clients, len(index), partition)]

    def _read_saved(self, partition: Saved) -> Assignment:
        saved = partition.read(self.options.labels("train"), self.options.labels("test"))
        wanted = self.options.num_clients
        if saved.num_clients != wanted:
            message = f"assigns {saved.num_clients} clients, but `data.num_clients` is {wanted}"
            raise ValueError(f"`{partition.path}` {message}.")
        if self.options.own_test and not saved.own_test:
            raise ValueError(f"`data.own_test` needs own_test rows, but `{partition.path}` has none.")
        return saved


def _checked(parts: list[np.ndarray], num_clients: int, num_samples: int, partition: Partition) -> list[np.ndarray]:
    """Validate the indices that a partition returns; it may be the user's own."""
    message = f"`data.partition`: `assign` of {type(partition).__name__} must give {num_clients} arrays of indices"
    if not isinstance(parts, list | tuple) or len(parts) != num_clients:
        got = len(parts) if isinstance(parts, list | tuple) else f"a {type(parts).__name__}"
        raise ValueError(f"{message}, one per client, got {got}.")
    found = [np.asarray(part) if len(part) else np.empty(0, np.int64) for part in parts]
    for k, indices in enumerate(found):
        if indices.ndim != 1 or indices.dtype.kind not in "iu":
            raise ValueError(f"{message}, got {indices.dtype} {list(indices.shape)} for client {k}.")
        if indices.size and not 0 <= indices.min() <= indices.max() < num_samples:
            ends = f"{indices.min()} to {indices.max()}"
            message = f"{message} into the {num_samples} labels that it is given, got {ends} for client {k}"
            raise ValueError(f"{message}; test samples are dealt out by a call of their own.")
    return [indices.astype(np.int64, copy=False) for indices in found]


def _numbered_owners(splits: Splits, num_clients: int) -> tuple[dict[str, np.ndarray], list[str]]:
    """The number of each sample's client, ``[N]``, and the clients' names; -1 of a client without training samples.

    Names are numbered in their order: by number if all are whole ones, so that 10 comes after 9, else as text.
    """
    if splits.train.owners is None:
        raise ValueError(_owners_missing("training", "clients"))
    given = {"train": splits.train.owners.astype(str)}
    if splits.test.owners is not None:
        given["test"] = splits.test.owners.astype(str)
    with suppress(ValueError, OverflowError):  # as text
        given = {part: owners.astype(np.int64) for part, owners in given.items()}
    names = np.unique(given["train"])
    if len(names) != num_clients:
        message = f"`data.num_clients` is {num_clients}, but training samples are of {len(names)} clients"
        raise ValueError(f"{message}; set it to {len(names)}.")
    numbers = {part: np.searchsorted(names, owners) for part, owners in given.items()}
    for part, owners in given.items():
        numbers[part][~np.isin(owners, names)] = -1
    return numbers, [str(name) for name in names]


def _owners_missing(which: str, option: str) -> str:
    message = f"the clients of the {which} samples are unknown: name their column in `data.client`"
    return f"`data.partition`: {message}, or give `{option}` of ByColumn."
