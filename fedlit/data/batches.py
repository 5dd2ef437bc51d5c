"""Batches of samples. In memory, a permutation an epoch, then views: several times faster than a DataLoader."""

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from fedlit.data.items import Tree, chosen, describe, mapped

if TYPE_CHECKING:
    from fedlit.data.splits import Part

DropLast = bool | Literal["single"]
Transform = Callable[[Tree, torch.Generator | None, Tensor], Tree]


@dataclass
class Batches:
    """Batches of samples in memory, or of samples that are read one by one.

    Args:
        samples: Ready for the network unless `transform` still has to run.
        batch_size: Samples per batch; the last batch may be smaller.
        generator: Shuffles and augments, and what samples draw as they are read follows from it; None keeps the order.
        transform: Applied to each batch of inputs, with the generator and the positions of its samples.
        drop_last: Leave a smaller last batch out; `single` only one of a single sample, unless it is the only batch.
        rows: Places of the samples that are in the batches, ``[N]``; None is all.
        hidden: Samples whose targets are replaced by -1, a mask ``[N]``; None is none.
        indexed: Batches also hold the positions of their samples.
    """

    samples: "Part"
    batch_size: int
    generator: torch.Generator | None = None
    transform: Transform | None = None
    drop_last: DropLast = False
    rows: Tensor | None = None
    hidden: Tensor | None = None
    indexed: bool = False
    device: torch.device = field(default=torch.device("cpu"), repr=False)
    epoch: int = field(default=0, repr=False)

    @property
    def is_in_memory(self) -> bool:
        return self.samples.is_in_memory

    @property
    def x(self) -> Tree:
        """All inputs, where they are in memory."""
        return self.samples.x if self.rows is None else chosen(self.samples.x, self.rows)

    @property
    def y(self) -> Tree:
        """All targets, where they are in memory."""
        y = self.samples.y if self.rows is None else chosen(self.samples.y, self.rows)
        return y if self.hidden is None else without_targets(y, self.hidden)

    @property
    def num_samples(self) -> int:
        return len(self.samples) if self.rows is None else self.rows.shape[0]

    def __len__(self) -> int:
        return num_batches(self.num_samples, self.batch_size, self.drop_last)

    def order(self) -> Tensor:
        """Positions of the samples in the next epoch: as they are, or a permutation that the generator draws."""
        if self.generator is None:
            return torch.arange(self.num_samples)
        return torch.randperm(self.num_samples, generator=self.generator)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        self.epoch += 1
        with closing(self.samples.read(self)) as batches:  # processes that read end when nobody asks for more
            for positions, x, y in batches:
                if self.hidden is not None:
                    y = without_targets(y, self.hidden[positions])
                if self.transform is not None:
                    x = self.transform(x, self.generator, positions)
                yield (
                    (x, y, positions if self.device is None else positions.to(self.device)) if self.indexed else (x, y)
                )

    def to(self, device: torch.device) -> "Batches":
        """On a device: of samples elsewhere, those that are in the batches."""
        self.device = device
        self.samples, self.rows = self.samples.on(device, self.rows)
        return self

    def first(self, number: int | None) -> "Batches":
        """The same of the first samples only; of all for None."""
        if number is None:
            return self
        rows = torch.arange(self.num_samples) if self.rows is None else self.rows
        return replace(self, rows=rows[:number], hidden=None if self.hidden is None else self.hidden[:number])


def num_batches(num_samples: int, batch_size: int, drop_last: DropLast) -> int:
    """Batches of an epoch.

    Example:
        >>> [num_batches(449, 32, drop_last) for drop_last in (False, "single", True)]
        [15, 14, 14]
        >>> [num_batches(1, 32, drop_last) for drop_last in (False, "single", True)]
        [1, 1, 0]
    """
    full, rest = divmod(num_samples, batch_size)
    if drop_last == "single":
        return full + bool(rest > 1 or (rest and not full))
    return full + bool(rest and not drop_last)


def without_targets(y: Tree, hidden: Tensor) -> Tree:
    """Targets ``[N, ...]`` with -1 in place of those that are hidden."""
    rows = hidden.nonzero().flatten()

    def hide(leaf: Tensor) -> Tensor:
        if len(rows) and not leaf.is_signed():
            raise ValueError(f"`data.public` hides targets by -1, which {describe(leaf)} cannot hold.")
        return leaf.index_fill(0, rows.to(leaf.device), -1)

    return mapped(hide, y)
