"""Batches of a data set for whoever asks: a client that trains, one that is evaluated, the server with its pool."""

from collections.abc import Sequence

import numpy as np
import torch

from fedlit.data.batches import Batches, DropLast, RowBatches
from fedlit.data.inputs import Inputs
from fedlit.data.loaded import AnyBatches
from fedlit.data.parts import Part, Read, Splits
from fedlit.data.public_pool import PublicPool
from fedlit.data.trees import Tree, chosen, joined, mapped


class Batching:
    """Makes batches of samples in memory, and of those that are read one by one.

    Args:
        splits: The data set.
        pool: The public samples of it.
        inputs: What is done to samples before a network sees them.
        drop_last: Which last batch of training samples is left out: a smaller one, one of a `single` sample, or none.
        eval_batch_size: Samples per batch in evaluation.
    """

    def __init__(
        self, splits: Splits, pool: PublicPool, inputs: Inputs, drop_last: DropLast, eval_batch_size: int
    ) -> None:
        self.splits = splits
        self.pool = pool
        self.inputs = inputs
        self.drop_last = drop_last
        self.eval_batch_size = eval_batch_size

    def train(
        self,
        held: np.ndarray,
        batch_size: int,
        generator: torch.Generator | None,
        client: int | None,
        public: bool = False,
    ) -> AnyBatches:
        """Training samples at these places; `public` mixes the pool in, without its targets."""
        part = self.splits.train
        if isinstance(part, Read):
            index = np.concatenate([held, self.pool.index]) if public else held
            hidden = torch.arange(len(index)) >= len(held) if public else None
            ready = self.inputs.transform_read(client)
            return part.batches(index, batch_size, ready, generator, self.drop_last, hidden)
        rows = torch.from_numpy(np.asarray(held, np.int64))
        if client is not None and not public and not self.inputs.change(part.x):
            return RowBatches((part.x, part.y), rows, batch_size, generator, self.drop_last)
        x = chosen(part.x, rows)
        y = chosen(part.y, rows)
        if client is not None and not public and not self.inputs.is_random:
            return Batches(self.inputs.ready(x, client), y, batch_size, generator, drop_last=self.drop_last)
        if public:
            x = joined([x, self.pool.x])
            y = joined([y, self.pool.targets()])
        # On the way into each batch: a pool of floats would need four times the room.
        return Batches(x, y, batch_size, generator, self.inputs.transform(client), self.drop_last)

    def evaluated(self, part: Part, parts: list[np.ndarray], clients: Sequence[int]) -> tuple[Batches, np.ndarray]:
        """Samples of some clients end to end, each as its client sees it, and how many each has."""
        sizes = np.array([len(own) for own in parts])
        index = np.concatenate(parts)
        if isinstance(part, Read):
            owners = np.repeat(np.asarray(clients), sizes)
            return part.batches(index, self.eval_batch_size, self.inputs.transform_read(owners)), sizes
        if not self.inputs.differ:
            return part.batches(index, self.eval_batch_size, self.inputs.transform(None)), sizes
        ready = [self.inputs.ready(part.taken(own).x, k) for own, k in zip(parts, clients, strict=True)]
        return Batches(torch.cat(ready), part.taken(index).y, self.eval_batch_size), sizes

    def whole(self, part: Part) -> Batches:
        """All samples of a part, in order."""
        if isinstance(part, Read):
            return part.batches(np.arange(len(part)), self.eval_batch_size, self.inputs.transform_read(None))
        # Not the samples themselves: a network may work on its input in place.
        return Batches(part.x, part.y, self.eval_batch_size, transform=lambda x, _: self.inputs.ready(_copied(x), None))

    def public(self, batch_size: int, generator: torch.Generator | None, labels: bool) -> Batches:
        """The public pool; without `labels`, every target is -1."""
        part = self.splits.train
        if isinstance(part, Read):
            hidden = None if labels else torch.ones(len(self.pool), dtype=torch.bool)
            ready = self.inputs.transform_read(None)
            return part.batches(self.pool.index, batch_size, ready, generator, self.drop_last, hidden)
        y = self.pool.targets(reveal=labels)
        return Batches(self.pool.x, y, batch_size, generator, self.inputs.transform(None), self.drop_last)


def _copied(x: Tree) -> Tree:
    return mapped(lambda leaf: leaf.clone(), x)
