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
from torch import Tensor

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


def default_generators() -> list[torch.Generator]:
    """Torch's global generators that are in use: the CPU's, and that of the current device of each accelerator.

    To ask CUDA or XPU before anybody has used it would create its context, which no forked process could use.
    """
    found = [torch.default_generator]
    for accelerator in (torch.cuda, torch.xpu):
        if accelerator.is_initialized():
            found.append(accelerator.default_generators[accelerator.current_device()])
    if torch.backends.mps.is_available():  # its generator is plain memory of the host
        found.append(torch.mps._get_default_mps_generator())
    return found


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and random inside, and leave them outside as they were.

    But for the second of a pair of normal numbers, if numpy's global generator held one back: it draws a new pair.
    """
    generators = default_generators()
    torch_before = [used.get_state() for used in generators]
    numpy_before = get_bit_generator()
    numpy_inside = SPARE_GENERATORS.pop() if SPARE_GENERATORS else np.random.MT19937(0)
    random_before = random.getstate()
    set_bit_generator(numpy_inside)
    seed_cpu(seed)
    for used in generators[1:]:
        used.manual_seed(seed)
    try:
        yield
    finally:
        for used, before in zip(generators, torch_before, strict=True):
            used.set_state(before)
        set_bit_generator(numpy_before)
        SPARE_GENERATORS.append(numpy_inside)
        random.setstate(random_before)


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
        self.seed = seed
        self._states: list[Tensor] = []  # of the default generators, once they have been used

    def __enter__(self) -> None:
        generators = default_generators()
        self._outer = [used.get_state() for used in generators]
        for number, used in enumerate(generators):
            if number < len(self._states):
                used.set_state(self._states[number])
            else:
                used.manual_seed(self.seed)

    def __exit__(self, *error: object) -> None:
        generators = default_generators()
        self._states = [used.get_state() for used in generators]
        for used, outer in zip(generators, self._outer, strict=False):  # what was not in use before has no outer state
            used.set_state(outer)
