"""Random streams, each derived from what it is for, so that no order of events can change them.

No generator state is ever saved: the training of client 7 in round 12 draws from ``derive(seed, "visit",
stage, 12, 7)`` whether it runs first or last, in this process or another, or after a crash.
"""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from hashlib import blake2b, shake_256
from typing import Any

import numpy as np
import torch
from numpy.random.mtrand import get_bit_generator, set_bit_generator
from torch import Tensor

# Inside, another generator stands in the place of numpy's: to copy a state, or to make a generator, would take thirty
# times as long as to change places, so those that are done with are kept.
SPARE_GENERATORS: list[np.random.MT19937] = []
FIRST_OF_SEED_0 = (np.random.RandomState(0).random(), random.Random(0).random())
SECURE_BLOCK = 2**20  # numbers of `secure_normal` that are in memory beside the result


def derive(seed: int | str, *purpose: str | int) -> int:
    """A 63-bit seed of its own for each purpose.

    Example:
        >>> derive(1, "visit", 0, 3) == derive(1, "visit", 0, 3), derive(1, "visit", 0, 3) == derive(1, "visit", 3, 0)
        (True, False)
    """
    digest = blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def derive_key(seed: int | str, *purpose: str | int) -> bytes:
    """A 256-bit key of its own for each purpose, for `secure_normal`."""
    return blake2b(repr((seed, *purpose)).encode(), digest_size=32).digest()


def secure_normal(key: bytes, size: int) -> Tensor:
    """Standard normal numbers ``[size]``, float64, from SHAKE-256 of a key by the Box-Muller transform.

    Of torch's generators a seed has 32 bits, which can be tried one by one, and what was drawn reveals the rest. Here
    nothing is known to do better than trying keys.

    Example:
        >>> drawn = secure_normal(derive_key(0, "noise"), 10_000)
        >>> bool(drawn.mean().abs() < 0.05), bool((drawn.std() - 1).abs() < 0.05)
        (True, True)
    """
    drawn = np.empty(size)
    for start in range(0, size, SECURE_BLOCK):
        block = drawn[start : start + SECURE_BLOCK]
        pairs = (len(block) + 1) // 2
        stream = shake_256(key + start.to_bytes(8, "big")).digest(16 * pairs)
        uniform = ((np.frombuffer(stream, dtype="<u8") >> 11) + 0.5) * 2.0**-53  # never 0, of which there is no log
        radius = np.sqrt(-2 * np.log(uniform[:pairs]))
        angle = 2 * np.pi * uniform[pairs:]
        block[:pairs] = radius * np.cos(angle)
        block[pairs:] = (radius * np.sin(angle))[: len(block) - pairs]
    return torch.from_numpy(drawn)


def generator(seed: int | str, *purpose: str | int) -> torch.Generator:
    """A CPU generator on the stream of that purpose."""
    return torch.Generator().manual_seed(derive(seed, *purpose))


def stream(seed: int, purpose: str, client: int = 0) -> np.random.Generator:
    """A generator of numpy's for dealing samples out: one of its own for each purpose and client."""
    return np.random.default_rng([seed, client, *purpose.encode()])


def devices_in_use() -> list[str]:
    """The CPU, and accelerators that somebody has used.

    To ask CUDA or XPU before would create its context, which no forked process could use.
    """
    found = ["cpu"]
    if torch.cuda.is_initialized():
        found.append("cuda")
    if torch.xpu.is_initialized():
        found.append("xpu")
    if torch.backends.mps.is_available():  # its generator is plain memory of the host
        found.append("mps")
    return found


def torch_states() -> dict[str, Tensor]:
    """States of torch's global generators: the CPU's, and that of the current device of each accelerator in use."""
    return {device: _torch_module(device).get_rng_state() for device in devices_in_use()}


def _torch_module(device: str) -> Any:
    return torch if device == "cpu" else getattr(torch, device)


def set_torch_states(states: dict[str, Tensor]) -> None:
    """Put torch's global generators back to what `torch_states` returned."""
    for device, state in states.items():
        _torch_module(device).set_rng_state(state)


def _seed_torch(seed: int, devices: Iterable[str]) -> None:
    """Seed torch's global generators of these devices."""
    for device in devices:
        if device == "cpu":
            seed_torch_cpu(seed)
        else:
            getattr(torch, device).manual_seed(seed)


@contextmanager
def preserved() -> Iterator[None]:
    """Leave the global generators of torch, numpy and random afterwards as they were.

    But for the second of a pair of normal numbers, if numpy's global generator held one back: it draws a new pair.
    """
    torch_before = torch_states()
    numpy_before = get_bit_generator()
    numpy_inside = SPARE_GENERATORS.pop() if SPARE_GENERATORS else np.random.MT19937(0)
    random_before = random.getstate()
    set_bit_generator(numpy_inside)
    try:
        yield
    finally:
        set_torch_states(torch_before)
        set_bit_generator(numpy_before)
        SPARE_GENERATORS.append(numpy_inside)
        random.setstate(random_before)


@contextmanager
def isolated(seed: int) -> Iterator[None]:
    """Seed the global generators of torch, numpy and random inside, and leave them outside as they were."""
    with preserved():
        seed_everything(seed)
        yield


def seed_everything(seed: int) -> None:
    """Seed the global generators of torch, on all devices in use, of numpy and of random: within `preserved`."""
    _seed_torch(seed, devices_in_use())
    seed_others(seed)


def seed_cpu(seed: int) -> None:
    """Seed the global generators of torch (on the CPU), numpy and random: within `isolated`, or in a worker."""
    seed_torch_cpu(seed)
    seed_others(seed)


def seed_torch_cpu(seed: int) -> None:
    """Seed torch's global generator of the CPU; not torch.manual_seed, which formats a stack trace without a GPU."""
    torch.default_generator.manual_seed(seed)


def seed_others(seed: int) -> None:
    """Seed the global generators of numpy and random."""
    np.random.seed(seed % 2**32)
    random.seed(seed)


def others_have_drawn() -> bool:
    """Whether anybody has drawn from the global generators of numpy and random since `seed_others(0)`; draws itself."""
    return (np.random.random(), random.random()) != FIRST_OF_SEED_0


class Stream:
    """A random stream of its own for one of several networks: what it draws does not move the others' numbers.

    Args:
        seed: Where the stream starts; it goes on from one use to the next.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._states: dict[str, Tensor] = {}

    def __enter__(self) -> None:
        self._outer = torch_states()
        _seed_torch(self.seed, self._outer.keys() - self._states.keys())
        set_torch_states(self._states)

    def __exit__(self, *error: object) -> None:
        self._states = torch_states()
        set_torch_states(self._outer)
