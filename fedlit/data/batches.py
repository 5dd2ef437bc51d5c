"""Batches of tensors held in memory. A permutation an epoch, then views: several times faster than a DataLoader."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass
class Batches:
    """Batches of tensors held in memory: a permutation an epoch, then views.

    Args:
        x: Inputs ``[N, ...]``, ready for the network unless `transform` still has to run.
        y: Targets ``[N]``.
        batch_size: Samples per batch; the last batch may be smaller.
        generator: Shuffles and augments; None keeps the order.
        transform: Applied to each batch of inputs, with the generator.
        drop_last: Leave a smaller last batch out.
        indexed: Batches also hold the positions of their samples in `x`.
    """

    x: Tensor
    y: Tensor
    batch_size: int
    generator: torch.Generator | None = None
    transform: Callable[[Tensor, torch.Generator | None], Tensor] | None = None
    drop_last: bool = False
    indexed: bool = False

    @property
    def num_samples(self) -> int:
        return len(self.y)

    def __len__(self) -> int:
        full, rest = divmod(len(self.y), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def order(self) -> Tensor:
        """Positions of the samples in the next epoch."""
        if self.generator is None:
            return torch.arange(len(self.y))
        return torch.randperm(len(self.y), generator=self.generator)

    def __iter__(self) -> Iterator[tuple[Tensor, ...]]:
        order = self.order()
        x = self.x
        y = self.y
        if self.generator is not None:
            order = order.to(x.device)
            x = x.index_select(0, order)  # several times faster than x[order]
            y = y.index_select(0, order)
        columns = [x, y]
        if self.indexed:
            columns.append(order)
        parts = [column.split(self.batch_size) for column in columns]
        for _, x_batch, *rest in zip(range(len(self)), *parts, strict=False):
            if self.transform is not None:
                x_batch = self.transform(x_batch, self.generator)
            yield x_batch, *rest

    def first(self, number: int) -> "Batches":
        """Batches of the first so many samples."""
        return replace(self, x=self.x[:number], y=self.y[:number])

    def to(self, device: torch.device) -> "Batches":
        self.x = self.x.to(device)
        self.y = self.y.to(device)
        return self
