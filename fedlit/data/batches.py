"""Batches of tensors held in memory. A permutation an epoch, then views: several times faster than a DataLoader."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch

from fedlit.data.trees import Tree, chosen, cut, head, leaves, length, moved

DropLast = bool | Literal["single"]
Transform = Callable[[Tree, torch.Generator | None], Tree]


@dataclass
class Batches:
    """Batches of tensors held in memory: a permutation an epoch, then views.

    Args:
        x: Inputs ``[N, ...]``, a tensor or a tree of them, ready for the network unless `transform` still has to run.
        y: Targets ``[N, ...]``, likewise.
        batch_size: Samples per batch; the last batch may be smaller.
        generator: Shuffles and augments; None keeps the order.
        transform: Applied to each batch of inputs, with the generator.
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
        columns = [x, y]
        if self.indexed:
            columns.append(order)
        parts = [cut(column, self.batch_size) for column in columns]
        for _, x_batch, *rest in zip(range(len(self)), *parts, strict=False):
            if self.transform is not None:
                x_batch = self.transform(x_batch, self.generator)
            yield x_batch, *rest

    def to(self, device: torch.device) -> "Batches":
        self.x = moved(self.x, device)
        self.y = moved(self.y, device)
        return self

    def first(self, number: int | None) -> "Batches":
        """The same of the first samples only; of all for None."""
        return replace(self, x=head(self.x, number), y=head(self.y, number))


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
