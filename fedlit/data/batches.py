"""Batches of tensors held in memory. A permutation an epoch, then views: several times faster than a DataLoader."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from fedlit.data.items import Tree, chosen, cut, head, leaves, length, moved

DropLast = bool | Literal["single"]
Transform = Callable[[Tree, torch.Generator | None, torch.Tensor], Tree]


@dataclass
class Batches:
    """Batches of tensors held in memory: a permutation an epoch, then views.

    Args:
        x: Inputs ``[N, ...]``, a tensor or a tree of them, ready for the network unless `transform` still has to run.
        y: Targets ``[N, ...]``, likewise.
        batch_size: Samples per batch; the last batch may be smaller.
        generator: Shuffles and augments; None keeps the order.
        transform: Applied to each batch of inputs, with the generator and the positions of its samples in `x`.
        drop_last: Leave a smaller last batch out; `single` only one of a single sample, unless it is the only batch.
        indexed: Batches also hold the positions of their samples in `x`.
    """

    x: Tree
    y: Tree
    batch_size: int
    generator: torch.Generator | None = None
    transform: Transform | None = None
    drop_last: DropLast = False
    indexed: bool = False

    @property
    def columns(self) -> tuple[Tree, Tree]:
        """Inputs and targets, as they are held."""
        return self.x, self.y

    @property
    def num_samples(self) -> int:
        return length(self.y)

    def __len__(self) -> int:
        return num_batches(self.num_samples, self.batch_size, self.drop_last)

    def order(self) -> torch.Tensor:
        """Positions of the samples in the next epoch."""
        return next_order(self.num_samples, self.generator)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        order = self.order()
        x = self.x
        y = self.y
        if self.generator is not None:
            order = moved(order, next(leaves(x)).device)
            x = chosen(x, order)
            y = chosen(y, order)
        parts = [cut(column, self.batch_size) for column in (x, y, order)]
        for _, x_batch, y_batch, positions in zip(range(len(self)), *parts, strict=False):
            if self.transform is not None:
                x_batch = self.transform(x_batch, self.generator, positions)
            yield (x_batch, y_batch, positions) if self.indexed else (x_batch, y_batch)

    def to(self, device: torch.device) -> "Batches":
        self.x = moved(self.x, device)
        self.y = moved(self.y, device)
        return self

    def first(self, number: int | None) -> "Batches":
        """The same of the first samples only; of all for None."""
        return replace(self, x=head(self.x, number), y=head(self.y, number))


class RowBatches:
    """`Batches` of some rows of larger tensors, gathered once an epoch in the epoch's order.

    Args:
        columns: Inputs and targets ``[M, ...]``, ready for the network.
        rows: Places of the samples ``[N]``.
        batch_size: As in `Batches`, and so are the others.
    """

    transform = None

    def __init__(
        self,
        columns: tuple[Tree, Tree],
        rows: torch.Tensor,
        batch_size: int,
        generator: torch.Generator | None,
        drop_last: DropLast,
    ) -> None:
        self.columns = columns
        self._rows = rows
        self.num_samples = rows.shape[0]
        self.batch_size = batch_size
        self.generator = generator
        self.drop_last = drop_last
        self.indexed = False

    @property
    def x(self) -> Tree:
        return chosen(self.columns[0], self._rows)

    @property
    def y(self) -> Tree:
        return chosen(self.columns[1], self._rows)

    def __len__(self) -> int:
        return num_batches(self.num_samples, self.batch_size, self.drop_last)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        order = next_order(self.num_samples, self.generator)
        rows = self._rows.index_select(0, order)
        columns = [chosen(column, rows) for column in self.columns]
        if self.indexed:
            columns.append(order)
        if self.num_samples == self.batch_size:
            yield tuple(columns)
            return
        parts = [cut(column, self.batch_size) for column in columns]
        for _, *batch in zip(range(len(self)), *parts, strict=False):
            yield tuple(batch)

    def to(self, device: torch.device) -> "Batches | RowBatches":
        """On a device: of samples elsewhere, those that are in the batches."""
        if next(leaves(self.columns)).device == device:
            return self
        return self._gathered().to(device)

    def first(self, number: int | None) -> Batches:
        """The same of the first samples only; of all for None."""
        return self._gathered().first(number)

    def _gathered(self) -> Batches:
        return Batches(self.x, self.y, self.batch_size, self.generator, drop_last=self.drop_last, indexed=self.indexed)


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


def next_order(num_samples: int, generator: torch.Generator | None) -> torch.Tensor:
    """Positions of the samples in an epoch: as they are, or a permutation that the generator draws."""
    if generator is None:
        return torch.arange(num_samples)
    return torch.randperm(num_samples, generator=generator)
