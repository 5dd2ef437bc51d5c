"""A data set: samples for training and for the test, in memory or read one by one, and the public pool."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from fedlit.data.batches import Batches, without_targets
from fedlit.data.items import Tree, chosen, cut, describe, head, joined, leaves, length, moved, num_bytes
from fedlit.data.loaders import Reader, fixed_seed, places
from fedlit.rng import derive, stream

FINGERPRINTED = 100  # inputs of a part that are hashed
READ_AGAIN = 8  # of those that have to be read


@dataclass(frozen=True, eq=False)
class StackedSamples:
    """Samples in memory, as trees of tensors ``[N, ...]``.

    uint8 images are normalised on the way into a batch; anything else is taken as it is.

    Attributes:
        x: Inputs.
        y: Targets; int64 ``[N]`` are classes, -1 for one that is hidden.
        owners: The name of each sample's client, ``[N]``; None if unknown.
    """

    x: Tree
    y: Tree
    owners: np.ndarray | None = None
    is_random: ClassVar[bool] = False
    is_in_memory: ClassVar[bool] = True

    def __len__(self) -> int:
        return length(self.y)

    @property
    def labels(self) -> np.ndarray | None:
        """The class of each sample, ``[N]``; None if targets are no classes."""
        if isinstance(self.y, Tensor) and self.y.ndim == 1 and self.y.dtype == torch.int64:
            return self.y.numpy()
        return None

    @property
    def example(self) -> tuple[Tree, Tree]:
        """Inputs and targets of one sample, ``[1, ...]``."""
        return head(self.x, 1), head(self.y, 1)

    @property
    def num_bytes(self) -> int:
        """Of the inputs."""
        return num_bytes(self.x)

    def taken(self, index: np.ndarray) -> "StackedSamples":
        """Some of the samples."""
        rows = torch.from_numpy(np.asarray(index, np.int64))
        return StackedSamples(chosen(self.x, rows), chosen(self.y, rows), _some(self.owners, index))

    def hiding(self, index: np.ndarray) -> "StackedSamples":
        """A copy with -1 for the targets of some samples."""
        hidden = torch.zeros(len(self), dtype=torch.bool)
        hidden[torch.from_numpy(index)] = True
        return replace(self, y=without_targets(self.y, hidden))

    def joined(self, other: "Part") -> "StackedSamples":
        """These samples, then others."""
        return StackedSamples(joined([self.x, other.x]), joined([self.y, other.y]))

    def read(self, batches: Batches) -> Generator[tuple[Tensor, Tree, Tree], None, None]:
        """Positions, inputs and targets of the batches of an epoch: gathered at once, then views."""
        order = batches.order()
        x, y = self.x, self.y
        if batches.generator is not None or batches.rows is not None:
            rows = order if batches.rows is None else batches.rows.index_select(0, order)
            rows = moved(rows, next(leaves(x)).device)
            x, y = chosen(x, rows), chosen(y, rows)
        if batches.num_samples == batches.batch_size:
            yield order, x, y
            return
        parts = [cut(column, batches.batch_size) for column in (order, x, y)]
        for _, positions, x_batch, y_batch in zip(range(len(batches)), *parts, strict=False):
            yield positions, x_batch, y_batch

    def on(self, device: torch.device, rows: Tensor | None) -> tuple["StackedSamples", Tensor | None]:
        """The samples on a device, and the rows of them; of samples elsewhere, only these."""
        if next(leaves(self.y)).device == device:
            return self, rows
        x, y = (column if rows is None else chosen(column, rows) for column in (self.x, self.y))
        return StackedSamples(moved(x, device), moved(y, device)), None

    def fingerprint(self) -> Iterator[bytes]:
        """Of all targets and about a hundred inputs."""
        for leaf in leaves(self.y):
            yield _bytes(leaf)
        step = max(1, len(self) // FINGERPRINTED)
        for leaf in leaves(self.x):
            yield _bytes(leaf[::step])


@dataclass(frozen=True, eq=False)
class LazySamples:
    """Samples that are read one by one, whenever they are asked for.

    Attributes:
        reader: Of the data set.
        index: Places of the samples in it, ``[N]``.
        example: Inputs and targets of one sample, ``[1, ...]``.
        labels: The class of each sample, ``[N]``, -1 for one that is hidden; None if targets are no classes.
        owners: The name of each sample's client, ``[N]``; None if unknown.
        is_random: Whether a sample is another one at each reading, by a seed.
    """

    reader: Reader
    index: np.ndarray
    example: tuple[Tree, Tree]
    labels: np.ndarray | None = None
    owners: np.ndarray | None = None
    is_random: bool = False

    def __len__(self) -> int:
        return len(self.index)

    @property
    def x(self) -> NoReturn:
        raise RuntimeError("The samples are not in memory but read one by one: see `data.in_memory`.")

    y = x
    is_in_memory = False

    @property
    def num_bytes(self) -> int:
        """Of the inputs, if all are as large as the first."""
        return num_bytes(self.example[0]) * len(self)

    def taken(self, index: np.ndarray) -> "LazySamples":
        """Some of the samples."""
        labels = _some(self.labels, index)
        return replace(self, index=self.index[index], labels=labels, owners=_some(self.owners, index))

    def hiding(self, index: np.ndarray) -> "LazySamples":
        """The same, with -1 for the classes of some samples."""
        if self.labels is None:
            return self
        labels = self.labels.copy()
        labels[index] = -1
        return replace(self, labels=labels)

    def joined(self, other: "Part") -> "LazySamples":
        """These samples, then others of the same data set."""
        assert isinstance(other, LazySamples)
        return replace(self, index=np.concatenate([self.index, other.index]), labels=None, owners=None)

    def read(self, batches: Batches) -> Generator[tuple[Tensor, Tree, Tree], None, None]:
        """Positions, inputs and targets of the batches of an epoch, by the reader."""
        index = self.index if batches.rows is None else self.index[batches.rows.numpy()]
        seed_of = _seeds(index, batches.generator, batches.epoch)
        parts = batches.order().split(batches.batch_size)[: len(batches)]
        positions = [part.tolist() for part in parts]
        keys = [(index[some].tolist(), [seed_of(position) for position in some]) for some in positions]
        with closing(self.reader.batches(keys)) as read:
            for part, (x, y) in zip(parts, read, strict=True):
                yield part, moved(x, batches.device), moved(y, batches.device)

    def on(self, device: torch.device, rows: Tensor | None) -> tuple["LazySamples", Tensor | None]:
        """Each batch is moved when it has been read."""
        return self, rows

    def fingerprint(self) -> Iterator[bytes]:
        """Of all classes, and of a few samples under a seed."""
        if self.labels is not None:
            yield self.labels.tobytes()
        for place in places(len(self), READ_AGAIN):
            sample = int(self.index[place])
            for leaf in leaves(self.reader.batch(([sample], [fixed_seed(sample)]))):
                yield _bytes(leaf) if isinstance(leaf, Tensor) else repr(leaf).encode()


Part = StackedSamples | LazySamples


def labels_of(part: Part) -> np.ndarray:
    """The class of each sample, ``[N]``; of samples without classes, 0 for all."""
    return np.zeros(len(part), np.int64) if part.labels is None else part.labels


def _seeds(index: np.ndarray, generator: torch.Generator | None, epoch: int) -> Callable[[int], int]:
    """What each sample is read by: in training, by the generator, the epoch and its position; else by itself."""
    if generator is None:
        return lambda position: fixed_seed(int(index[position]))
    # Of a copy: what the generator draws next must be what it draws for samples in memory.
    ahead = torch.Generator()
    ahead.set_state(generator.get_state())
    drawn = int(torch.randint(2**62, (), generator=ahead))
    return partial(derive, drawn, "sample", epoch)  # by the epoch, too: a permutation of one sample draws nothing


def _some(values: np.ndarray | None, index: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[index]


def _bytes(leaf: Tensor) -> bytes:
    return leaf.contiguous().view(torch.uint8).numpy().tobytes()  # numpy has no bfloat16


@dataclass(frozen=True, eq=False)
class Splits:
    """A data set: what is dealt out for training, and the test set.

    Attributes:
        train: Training samples; classes of the public pool are -1.
        test: Test samples.
        num_classes: Classes are below it; 0 if targets are no classes.
        mean: Of each channel of uint8 images on the [0, 1] scale; () for anything else.
        std: Likewise.
        valid: CINIC-10's third part.
        measured: Whether mean and std are of these images, not published ones.
        lowest_class: The lowest label, where the number of classes is not known; else 0.
    """

    train: Part
    test: Part
    num_classes: int
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    valid: Part | None = None
    measured: bool = False
    lowest_class: int = 0

    def part(self, name: Literal["train", "test"]) -> Part:
        return self.train if name == "train" else self.test

    @property
    def train_x(self) -> Tree:
        return self.train.x

    @property
    def train_y(self) -> Tree:
        return self.train.y

    @property
    def test_x(self) -> Tree:
        return self.test.x

    @property
    def test_y(self) -> Tree:
        return self.test.y


WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)
MOST_CLASSES = 1_000_000


class Facts(NamedTuple):
    """Published facts of a data set."""

    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


Names = tuple[str, str]  # what a user calls the inputs and the targets of a part


def splits_of(
    parts: Mapping[str, Part], names: Mapping[str, Names], facts: Facts | None = None, num_classes: int = 0
) -> Splits:
    """The checked data set; what is not published is taken from the data.

    Args:
        parts: `train`, `test` and perhaps `valid`.
        names: Of each.
        facts: Of a well-known data set.
        num_classes: The number of classes at least, where some may have no samples.
    """
    checked = {}
    for name, part in parts.items():
        checked[name] = _with_classes(part, names[name][1], facts)
        _check_inputs(checked[name], parts["train"], names[name][0], facts)
    train, test, valid = checked["train"], checked["test"], checked.get("valid")
    if facts is not None:
        return Splits(train, test, *facts, valid)
    for name, part in checked.items():
        if (part.labels is None) != (train.labels is None):
            kinds = f"{describe(train.example[1])} and {describe(part.example[1])}"
            raise ValueError(f"{names[name][1]} must be of the kind of {names['train'][1]}, got {kinds}.")
    labels = [part.labels for part in checked.values() if part.labels is not None]
    highest = max((int(some.max()) for some in labels), default=-1)
    lowest = min((int(some.min()) for some in labels), default=0)
    # Of samples that are read, mean and std are measured when it is known who shares which.
    mean, std = mean_std([train.x]) if isinstance(train, StackedSamples) else ((), ())
    lowest = 0 if num_classes else lowest
    return Splits(train, test, max(num_classes, highest + 1), mean, std, valid, measured=True, lowest_class=lowest)


def with_num_classes(splits: Splits, num_classes: int | None) -> Splits:
    """The data set with as many classes as the user says; None leaves them as they were counted."""
    if num_classes is None:
        return splits
    parts = [part for part in (splits.train, splits.test, splits.valid) if part is not None]
    highest = max((int(part.labels.max()) for part in parts if part.labels is not None), default=-1)
    if highest < 0:
        raise ValueError("`data.num_classes` has no meaning for these data: their targets are no classes.")
    if highest >= num_classes:
        why = f"must be at least {highest + 1}, since labels go up to {highest}"
        raise ValueError(f"`data.num_classes` {why}, got {num_classes}.")
    return replace(splits, num_classes=num_classes, lowest_class=0)


def with_test_set(train: Part, test_size: float, seed: int) -> tuple[Part, Part]:
    """Training and test samples: a fraction of every class is set apart at random."""
    rest, apart = split_off(labels_of(train), test_size, seed)
    if not len(rest) or not len(apart):
        sizes = f"{len(rest)} samples to train on and {len(apart)} to test"
        raise ValueError(f"`data.test_size` {test_size} of {len(train)} samples leaves {sizes}.")
    return train.taken(rest), train.taken(apart)


def _with_classes(part: Part, name: str, facts: Facts | None) -> Part:
    """The part with its classes as int64; a target that is one whole number is a class."""
    if isinstance(part, StackedSamples) and isinstance(part.y, Tensor) and part.y.ndim == 1 and part.y.dtype in WHOLE:
        part = replace(part, y=part.y.long())
    labels = part.labels
    if labels is None or not len(labels):
        return part
    least, most = labels.min(), labels.max()
    if facts is not None and not 0 <= least <= most < facts.num_classes:
        raise ValueError(f"{name} must be class indices, in [0, {facts.num_classes}), got {least} to {most}.")
    if not 0 <= least <= most < MOST_CLASSES:
        message = f"{name} must be class indices, 0 to {MOST_CLASSES - 1}, got {least} to {most}"
        raise ValueError(f"{message}; what is no class must be a float.")
    return part


def _check_inputs(part: Part, train: Part, name: str, facts: Facts | None) -> None:
    x = part.example[0]
    if len(part) == 0 or any(leaf.numel() == 0 for leaf in leaves(x) if isinstance(leaf, Tensor)):
        raise ValueError(f"{name} must not be empty, got {describe(x)}.")
    if isinstance(part, StackedSamples):
        _check_values(part, name)
    if facts is not None and not (is_images(x) and x.shape[1] == len(facts.mean)):
        raise ValueError(f"{name} must be uint8 with {len(facts.mean)} channel(s), got [N, C, H, W] = {_kind(part)}.")
    # What `data.collate_fn` pads is as long as the longest of its batch.
    is_padded = isinstance(part, LazySamples) and part.reader.collate_fn is not None
    if not is_padded and describe(x) != describe(train.example[0]):
        raise ValueError(f"{name} must match the training images, {_kind(train)} but for N, got {_kind(part)}.")


def _check_values(part: StackedSamples, name: str) -> None:
    for leaf in (*leaves(part.x), *leaves(part.y)):
        if leaf.requires_grad:
            raise ValueError(f"{name} must be plain values, got a tensor that requires grad; give its `detach()`.")
        if len(leaf) != len(part):
            raise ValueError(f"{name} must have {len(part)} samples, one for each target, got {describe(part.x)}.")
    x = part.x
    if isinstance(x, Tensor) and x.is_floating_point() and not x.isfinite().all():
        odd = (~x.isfinite()).nonzero()
        first = odd[0].tolist()
        raise ValueError(f"{name} must be finite, got {x[tuple(first)]:g} at {first}, the first of {len(odd)} such.")


def _kind(part: Part) -> str:
    return describe(part.x) if isinstance(part, StackedSamples) else f"{len(part)} of {describe(part.example[0])}"


@dataclass(frozen=True, eq=False)
class PublicPool:
    """Samples that all clients and the server have, without their targets.

    Attributes:
        part: The samples, with the targets, which only an upper bound may look at.
        index: Their places in the training set, if they are of it.
    """

    part: Part = field(repr=False)
    index: np.ndarray

    def __len__(self) -> int:
        return len(self.part)

    @property
    def x(self) -> Tree:
        """Inputs ``[N, ...]``, where they are in memory."""
        return self.part.x

    @property
    def num_bytes(self) -> int:
        return self.part.num_bytes

    def class_shares(self, num_classes: int) -> Tensor:
        """Fraction of each class ``[C]``, which reveals labels, too."""
        labels = self.part.labels
        if labels is None:
            raise ValueError("The public pool has no classes: targets of the data are none.")
        return torch.bincount(torch.from_numpy(labels), minlength=num_classes) / max(len(self), 1)


def set_apart(splits: Splits, public: float | Literal["valid"], seed: int) -> tuple[Splits, PublicPool, np.ndarray]:
    """The data set without the pool's labels, the pool, and which training samples are private.

    Args:
        splits: All of the data set.
        public: A fraction in [0, 1) of every class of the training set, or the data set's `valid`
            part.
        seed: Draws the fraction.
    """
    train = splits.train
    private = np.arange(len(train))
    pooled = np.empty(0, dtype=np.int64)
    if public == "valid":
        if splits.valid is None:
            raise ValueError("`data.public: valid` needs a data set with a `valid` part (cinic10).")
        return replace(splits, train=train.hiding(pooled), valid=None), PublicPool(splits.valid, pooled), private
    if public > 0:
        private, pooled = split_off(labels_of(train), public, seed)
    pool = PublicPool(train.taken(pooled), pooled)
    return replace(splits, train=train.hiding(pooled), valid=None), pool, private


def split_off(labels: np.ndarray, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split all indices at random into the rest and a pool with `fraction`, in (0, 1), of each class; both sorted."""
    labels = np.asarray(labels)
    rng = stream(seed, "pool")
    pooled = np.zeros(len(labels), dtype=bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        number = round(fraction * len(members))
        pooled[rng.permutation(members)[:number]] = True
    return np.flatnonzero(~pooled), np.flatnonzero(pooled)


def is_images(x: Tree) -> bool:
    """Whether inputs are uint8 images ``[N, C, H, W]``, which are scaled to [0, 1]."""
    return isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 4


def mean_std(images: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each channel of uint8 images, ``[N, C, H, W]`` each, on the [0, 1] scale; empty for anything else."""
    counts: Tensor | None = None
    for x in images:
        if not is_images(x):
            return (), ()
        # How often each of the 256 levels occurs, [C, 256], gives both without a float copy of the images.
        found = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)])
        counts = found if counts is None else counts + found
    if counts is None:
        return (), ()
    shares = counts.double() / int(counts[0].sum())
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]) ** 2).sum(dim=1).sqrt()
    std[std == 0] = 1.0  # a constant channel becomes 0, not 0 / 0
    return tuple(mean.tolist()), tuple(std.tolist())
