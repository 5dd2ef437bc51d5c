"""The parts of a data set, for training and for the test: in memory, or read sample by sample."""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Literal, NoReturn, cast

import numpy as np
import torch
from torch import Tensor

from fedlit.data.batches import Batches, DropLast, Transform
from fedlit.data.chance import places
from fedlit.data.loaded import LoadedBatches, Reader, Ready, fixed_seed, without_targets
from fedlit.data.trees import Tree, chosen, head, leaves, length, num_bytes

FINGERPRINTED = 100  # inputs of a part that tell whether it is still the same
READ_AGAIN = 8  # of those that have to be read


@dataclass(frozen=True, eq=False)
class Stacked:
    """Samples in memory, as trees of tensors ``[N, ...]``.

    uint8 images are normalised on the way into a batch; anything else is taken as it is.

    Attributes:
        x: Inputs.
        y: Targets; int64 ``[N]`` are classes, -1 for one that is not told.
        owners: Whose each sample is, in the user's words, ``[N]``; None if nobody says.
    """

    x: Tree
    y: Tree
    owners: np.ndarray | None = None
    is_random: bool = field(default=False, init=False)

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

    def taken(self, index: np.ndarray) -> "Stacked":
        """Some of the samples."""
        rows = torch.from_numpy(np.asarray(index, np.int64))
        return Stacked(chosen(self.x, rows), chosen(self.y, rows), _some(self.owners, index))

    def hiding(self, index: np.ndarray) -> "Stacked":
        """A copy with -1 for the targets of some samples."""
        return replace(self, y=without_targets(self.y, _mask(index, len(self))))

    def batches(self, index: np.ndarray, batch_size: int, transform: Transform | None = None) -> Batches:
        """Batches of some samples, in this order."""
        some = self.taken(index)
        return Batches(some.x, some.y, batch_size, transform=transform)

    def fingerprint(self) -> Iterator[bytes]:
        """Of all targets and about a hundred inputs."""
        for leaf in leaves(self.y):
            yield _bytes(leaf)
        step = max(1, len(self) // FINGERPRINTED)
        for leaf in leaves(self.x):
            yield _bytes(leaf[::step])


@dataclass(frozen=True, eq=False)
class Read:
    """Samples that are read one by one, whenever they are asked for.

    Attributes:
        reader: Of the data set.
        index: Places of the samples in it, ``[N]``.
        example: Inputs and targets of one sample, ``[1, ...]``.
        labels: The class of each sample, ``[N]``, -1 for one that is not told; None if targets are no classes.
        owners: Whose each sample is, in the user's words, ``[N]``; None if nobody says.
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

    @property
    def num_bytes(self) -> int:
        """Of the inputs, if all are as large as the first."""
        return num_bytes(self.example[0]) * len(self)

    def taken(self, index: np.ndarray) -> "Read":
        """Some of the samples."""
        labels = _some(self.labels, index)
        return replace(self, index=self.index[index], labels=labels, owners=_some(self.owners, index))

    def hiding(self, index: np.ndarray) -> "Read":
        """The same, with -1 for the classes of some samples."""
        if self.labels is None:
            return self
        labels = self.labels.copy()
        labels[index] = -1
        return replace(self, labels=labels)

    def batches(
        self,
        index: np.ndarray,
        batch_size: int,
        transform: Ready | None = None,
        generator: torch.Generator | None = None,
        drop_last: DropLast = False,
        hidden: Tensor | None = None,
    ) -> Batches:
        """Batches of some samples, in this order or in the generator's."""
        places = self.index[np.asarray(index, np.int64)]
        read = LoadedBatches(self.reader, places, batch_size, generator, transform, drop_last, hidden=hidden)
        # They have all that anybody may ask of batches whose tensors need not be there.
        return cast(Batches, read)

    def fingerprint(self) -> Iterator[bytes]:
        """Of all classes, and of a few samples under a seed."""
        if self.labels is not None:
            yield self.labels.tobytes()
        for place in places(len(self), READ_AGAIN):
            sample = int(self.index[place])
            for leaf in leaves(self.reader.batch(([sample], [fixed_seed(sample)]))):
                yield _bytes(leaf) if isinstance(leaf, Tensor) else repr(leaf).encode()


Part = Stacked | Read


def _some(values: np.ndarray | None, index: np.ndarray) -> np.ndarray | None:
    return None if values is None else values[index]


def _bytes(leaf: Tensor) -> bytes:
    if leaf.dtype == torch.bfloat16:  # numpy has none
        leaf = leaf.float()
    return leaf.numpy().tobytes()


def _mask(index: np.ndarray, size: int) -> Tensor:
    mask = torch.zeros(size, dtype=torch.bool)
    mask[torch.from_numpy(np.asarray(index, np.int64))] = True
    return mask


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
        measured: Whether mean and std are not published ones, but of these images.
        lowest_class: That any sample has, where nobody says how many classes there are; else 0.
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

    def split(self, name: Literal["train", "test"]) -> tuple[Tree, Tree]:
        """Inputs and targets of one of the two, in memory."""
        part = self.part(name)
        return part.x, part.y

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

    @property
    def valid_x(self) -> Tree | None:
        return None if self.valid is None else self.valid.x

    @property
    def valid_y(self) -> Tree | None:
        return None if self.valid is None else self.valid.y
