"""Batches of tensors held in memory. A permutation an epoch, then views: several times faster than a DataLoader."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

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
    """

    x: Tensor
    y: Tensor
    batch_size: int
    generator: torch.Generator | None = None
    transform: Callable[[Tensor, torch.Generator | None], Tensor] | None = None
    drop_last: bool = False

    def __len__(self) -> int:
        full, rest = divmod(len(self.y), self.batch_size)
        return full + bool(rest and not self.drop_last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        x, y = self.x, self.y
        if self.generator is not None:
            order = torch.randperm(len(y), generator=self.generator).to(x.device)
            x, y = x[order], y[order]
        for _, x_batch, y_batch in zip(
            range(len(self)), x.split(self.batch_size), y.split(self.batch_size), strict=False
        ):
            yield (x_batch if self.transform is None else self.transform(x_batch, self.generator)), y_batch

    def to(self, device: torch.device) -> "Batches":
        self.x, self.y = self.x.to(device), self.y.to(device)
        return self
