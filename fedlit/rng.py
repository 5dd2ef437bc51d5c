"""Random streams, each derived from what it is for, so that no order of events can change them.

No generator state is ever saved: a visit of client 7 in round 12 draws from ``derive(seed, "visit",
stage, 12, 7)`` whether it runs first or last, in this process or another, or after a crash.
"""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator

# Inside, another generator stands in the place of numpy's: to copy a state, or to make a generator, would take thirty
# times as long as to change places, so those that are done with are kept.
SPARE_GENERATORS: list[np.random.MT19937] = []


def derive(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed of its own for each purpose.

    Example:
        >>> derive(1, "visit", 0, 3) == derive(1, "visit", 0, 3), derive(1, "visit", 0, 3) == derive(1, "visit", 3, 0)
        (True, False)
    """
    digest = blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def generator(seed: int, *purpose: str | int) -> torch.Generator:
    """A CPU generator on the stream of that purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def stream(seed: int, purpose: str, client: int = 0) -> np.random.Generator:
    """A generator of numpy's for dealing samples out: one of its own for each purpose and client."""
    return np.random.default_rng([seed, client, *purpose.encode()])


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and random inside, and leave them outside as they were.

    But for the second of a pair of normal numbers, if numpy's global generator held one back: it draws a new pair.
    """
    torch_before = torch.get_rng_state()
    numpy_before = get_bit_generator()
    numpy_inside = SPARE_GENERATORS.pop() if SPARE_GENERATORS else np.random.MT19937(0)
    random_before = random.getstate()
    gpu_before = None
    if torch.cuda.is_available():
        gpu_before = torch.cuda.get_rng_state()
    set_bit_generator(numpy_inside)
    seed_cpu(seed)
    if gpu_before is not None:
        torch.cuda.manual_seed(seed)
    try:
        yield
    finally:
        torch.set_rng_state(torch_before)
        set_bit_generator(numpy_before)
        SPARE_GENERATORS.append(numpy_inside)
        random.setstate(random_before)
        if gpu_before is not None:
            torch.cuda.set_rng_state(gpu_before)


def seed_cpu(seed: int) -> None:
    """Seed the global generators of torch (on the CPU), numpy and random: within `isolated`, or in a worker."""
    # Not torch.manual_seed: without a GPU it formats and keeps a stack trace at every call.
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class Stream:
    """A random stream of its own for one of several networks: what it draws does not move the others' numbers.

    Args:
        seed: Where the stream starts; it goes on from one use to the next.
    """

    def __init__(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    def __enter__(self) -> None:
        self._outer = torch.get_rng_state()
        torch.set_rng_state(self._state)

    def __exit__(self, *error: object) -> None:
        self._state = torch.get_rng_state()
        torch.set_rng_state(self._outer)
