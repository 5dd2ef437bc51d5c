"""Whether a data set gives another sample each time that it is asked, and whether a seed decides which."""

import random
from typing import Any

import numpy as np
import torch

from fedlit.data.loaded import Reader
from fedlit.data.trees import equal
from fedlit.rng import isolated, seed_cpu

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
    with isolated(1):
        for index in places(len(reader)):
            once = reader.item(index, seed=1)
            has_drawn = _states() != _fresh_states(seed=1)
            again = reader.item(index, seed=1)
            if not equal(once, again):
                raise ValueError(
                    f"item {index} of `{reader.name}` is another one at every reading, whatever the seed: draw from "
                    "the generators of torch, numpy or random, seed one of your own by `torch.initial_seed()` in "
                    "`__getitem__`, or freeze samples as they are first read by `data.in_memory: true`."
                )
            other = reader.item(index, seed=2)
            found |= has_drawn or not equal(once, other)
    return found or _draws_a_batch(reader)


def _draws_a_batch(reader: Reader) -> bool:
    """Whether `data.collate_fn` makes another batch of the same items, such as one of masked words."""
    if reader.collate_fn is None:
        return False
    some = places(len(reader))
    once, again, other = (reader.batch((some, [seed] * len(some))) for seed in (1, 1, 2))
    if not equal(once, again):
        raise ValueError(
            "`data.collate_fn` makes another batch of the same items each time, whatever the seed: let it draw from "
            "the generators of torch, numpy or random."
        )
    return not equal(once, other)


def _states() -> tuple[Any, ...]:
    """Of the generators that everybody draws from."""
    of_numpy = np.random.get_state(legacy=False)
    return torch.get_rng_state().tolist(), repr(of_numpy["state"]["key"].tolist()), str(of_numpy), random.getstate()


def _fresh_states(seed: int) -> tuple[Any, ...]:
    seed_cpu(seed)
    return _states()
