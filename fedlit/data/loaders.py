"""Batches of samples that are read one by one, through a torch DataLoader.

What a data set draws while it reads a sample follows from the client's local training (or, in an evaluation, from
nothing), the epoch and the sample, never from the process that reads it.

Invariants: the same bits with any number of workers; where nothing is random, the bits of `Batches`; a random transform
gives another sample in every epoch, and the same one in every evaluation.
"""

import random
import signal
import traceback
from collections.abc import Callable, Generator, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import active_children
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, get_worker_info

from fedlit.data.items import Roles, Tree, as_input, as_target, class_of, describe, equal, stacked
from fedlit.rng import derive, isolated, others_have_drawn, preserved, seed_cpu, seed_others, seed_torch_cpu

Key = tuple[list[int], list[int]]  # samples of a batch, and what each of them is read by


@dataclass(frozen=True)
class Unreadable:
    """Why a batch could not be read, and where; a worker process returns it, since an exception would lose its form."""

    reason: str
    trace: str


@dataclass(frozen=True, eq=False)
class Reader(Dataset):
    """Reads batches of a data set.

    Args:
        dataset: Any with items and a length.
        name: For messages.
        roles: Which part of an item is what.
        collate_fn: Makes a batch of items as the data set gives them; by default they are stacked.
        num_workers: Processes that read; 0 reads in this one.
        draws_from_torch_alone: Whether samples seem to draw from torch's generator alone: then the others are seeded
            for a batch only if one of its samples has drawn from them.
    """

    dataset: Any
    name: str
    roles: Roles = field(default_factory=Roles)
    collate_fn: Callable[[list[Any]], Any] | None = None
    num_workers: int = 0
    draws_from_torch_alone: bool = False

    def __len__(self) -> int:
        return len(self.dataset)

    def item(self, index: int, seed: int, seed_generators: Callable[[int], None] = seed_cpu) -> Any:
        """A sample as the data set gives it; call it within `isolated`."""
        seed_generators(seed)
        try:
            return self.dataset[index]
        except Exception as error:  # a data set raises what it likes
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise ValueError(f"item {index} of `{self.name}` cannot be read: {why}") from error

    def tensors(self, item: Any, index: int) -> tuple[Tree, Tree]:
        """Input and target of an item."""
        x, y = self.roles.pair(item, f"`{self.name}`")
        return as_input(x, f"x {self._place(index)}"), as_target(y, f"y {self._place(index)}")

    def _place(self, index: int) -> str:
        return f"at item {index} of `{self.name}`"

    def batch(self, key: Key) -> tuple[Tree, Tree]:
        """Input and target of some samples; global random generators stay as they were."""
        is_own_process = get_worker_info() is not None
        with nullcontext() if is_own_process else preserved():
            batch = self.batch_by_torch_alone(key) if self.draws_from_torch_alone else None
            return self._read(key, seed_cpu) if batch is None else batch

    def batch_by_torch_alone(self, key: Key) -> tuple[Tree, Tree] | None:
        """The batch if no sample of it draws from numpy's or random's generator, which take longer to seed."""
        seed_others(0)
        batch = self._read(key, seed_torch_cpu)
        return None if others_have_drawn() else batch

    def _read(self, key: Key, seed_generators: Callable[[int], None]) -> tuple[Tree, Tree]:
        indices, seeds = key
        items = [self.item(index, seed, seed_generators) for index, seed in zip(indices, seeds, strict=True)]
        if self.collate_fn is None:
            return self._stacked(items, indices)
        seed_generators(derive(seeds[0], "collate"))  # it may draw, too: masks of words, mixtures of images
        return self.roles.of_batch(self.collate_fn(items))

    def _stacked(self, items: list[Any], indices: list[int]) -> tuple[Tree, Tree]:
        """Inputs and targets of items as trees ``[N, ...]``."""
        pairs = [self.roles.pair(item, f"`{self.name}`") for item in items]
        inputs = [as_input(x, f"x {self._place(index)}") for index, (x, _) in zip(indices, pairs, strict=True)]
        classes = [class_of(y) for _, y in pairs]
        if None not in classes and _are_alike(inputs):
            # Of numbers: a tensor each would take several times as long.
            return torch.stack(inputs), torch.tensor(classes)
        targets = [as_target(y, f"y {self._place(index)}") for index, (_, y) in zip(indices, pairs, strict=True)]
        samples = list(zip(inputs, targets, strict=True))
        kind = describe(samples[0])
        for index, sample in zip(indices, samples, strict=True):
            self.check_kind(sample, index, kind, indices[0])
        return stacked(inputs), stacked(targets)

    def check_kind(self, sample: tuple[Tree, Tree], index: int, kind: str, first: int = 0) -> None:
        """Refuse a sample that cannot be stacked with the first, which is of this kind."""
        if describe(sample) != kind:
            raise ValueError(
                f"`{self.name}` gives samples of different shapes or dtypes, {kind} at item {first} and "
                f"{describe(sample)} at item {index}: make them equal (a folder of images by `data.image_size`), or "
                "give `data.collate_fn`, which makes a batch of them."
            )

    def __getitem__(self, key: Key) -> Any:
        try:
            return self.batch(key)
        except Exception as error:
            return Unreadable(str(error), traceback.format_exc())

    def batches(self, keys: list[Key]) -> Generator[tuple[Tree, Tree], None, None]:
        """Batches in the order of the keys."""
        num_workers = min(self.num_workers, len(keys)) if len(keys) > 1 else 0  # one batch is read as fast here
        for batch in self._by_workers(keys, num_workers) if num_workers else map(self.__getitem__, keys):
            if isinstance(batch, Unreadable):
                raise ValueError(batch.reason) from RuntimeError(batch.trace)
            yield batch

    def _by_workers(self, keys: list[Key], num_workers: int) -> Iterator[Any]:
        """Batches by processes of their own, which end with the iteration, also those that hang."""
        loader: DataLoader = DataLoader(
            self,
            batch_size=None,  # a key is a batch
            sampler=keys,
            num_workers=num_workers,
            collate_fn=_as_it_is,
            worker_init_fn=_begin_worker,
            generator=torch.Generator(),  # it draws a seed for its workers, not from the global generator
        )
        others = set(active_children())
        batches = iter(loader)
        workers = set(active_children()) - others
        try:
            yield from batches
        finally:
            del batches  # asks them to end, and waits a few seconds
            for worker in workers:
                worker.kill()
                worker.join()


def _are_alike(inputs: list[Tree]) -> bool:
    """Whether all are single tensors of one shape and dtype."""
    kinds = {(x.shape, x.dtype) if isinstance(x, Tensor) else None for x in inputs}
    return len(kinds) == 1 and None not in kinds


def _as_it_is(batch: Any) -> Any:
    return batch


def _begin_worker(_: int) -> None:
    """Ignore signals, which reach the workers, too: the run decides when they end."""
    signal.set_wakeup_fd(-1)  # by which the run hears of its own signals
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def fixed_seed(index: int) -> int:
    """The seed of a sample where every reading is to be the same."""
    return derive(0, "sample", index)


TRIED = 4  # samples, from the first to the last


def places(num_samples: int, number: int = TRIED) -> list[int]:
    """Some samples of so many, from the first to the last.

    Example:
        >>> places(10), places(2)
        ([0, 3, 6, 9], [0, 1])
    """
    spread = np.linspace(0, num_samples - 1, min(number, num_samples))
    return [round(float(place)) for place in spread]


def is_random(reader: Reader) -> bool:
    """Whether samples differ from one reading to the next; refused where no seed makes them equal again.

    A few are read under two seeds and compared. A transform that seldom does anything may have done nothing in either
    reading, so it is also asked whether a generator has moved.
    """
    found = False
    some = places(len(reader))
    with isolated(1):
        first = _draw()
        for index in some:
            reader.item(index, seed=1)
            has_drawn = _draw() != first
            found |= _differ(partial(reader.item, index), f"item {index} of `{reader.name}`") or has_drawn
    if not found and reader.collate_fn is not None:  # which may mask words, or mix images
        found = _differ(lambda seed: reader.batch((some, [seed] * len(some))), "a batch of `data.collate_fn`")
    return found


def _differ(read: Callable[[int], Any], what: str) -> bool:
    """Whether what is read differs under two seeds."""
    once = read(1)
    if not equal(once, read(1)):
        raise ValueError(
            f"{what} is another one at every reading, whatever the seed: draw from the generators of torch, numpy or "
            "random, seed one of your own by `torch.initial_seed()` in `__getitem__`, or freeze samples as they are "
            "first read by `data.in_memory: true`."
        )
    return not equal(once, read(2))


def _draw() -> tuple[float, float, float]:
    """A number of each global generator; others if anything was drawn before."""
    return float(torch.rand((), dtype=torch.float64)), np.random.random(), random.random()
