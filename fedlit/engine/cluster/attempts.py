"""A place to meet for this attempt of a run alone: torchrun keeps its store over restarts, with addresses of the dead.

Attempts cannot be told apart by their numbers, for every host counts its own restarts. So each process asks with a word
that nobody has used before, and rank 0 answers it with the name of the place:

    rank r   asks/r = word                 rank 0   told/word = name
             waits for told/word                    until all have been seen in it
             name/came/r = yes
"""

import secrets
import time
from datetime import timedelta

import torch.distributed as dist

PAUSE = 0.02  # seconds between two looks at who has come


def place_of_this_attempt(store: dist.Store, rank: int, world_size: int, patience: timedelta) -> dist.Store:
    """A part of the store that holds nothing yet, the same on all processes.

    Args:
        store: What all processes of all attempts can reach; its own time limit holds for those that ask.
        rank: Of this process.
        world_size: How many are to come.
        patience: How long rank 0 waits for the others.
    """
    if rank == 0:
        name = f"attempt-{secrets.token_hex(8)}"
        _bring_in(store, name, set(range(1, world_size)), patience)
    else:
        name = _asked_for(store, rank)
    return dist.PrefixStore(name, store)


def _bring_in(store: dist.Store, name: str, missing: set[int], patience: timedelta) -> None:
    deadline = time.monotonic() + patience.total_seconds()
    while missing:
        for rank in sorted(missing):
            _answer(store, name, rank)
        missing = {rank for rank in missing if not store.check([_came(name, rank)])}
        if missing and time.monotonic() > deadline:
            ranks = ", ".join(map(str, sorted(missing)))
            raise TimeoutError(f"rank {ranks} did not come within {patience.total_seconds():g} s")
        time.sleep(PAUSE)


def _answer(store: dist.Store, name: str, rank: int) -> None:
    """Also where the question is that of an attempt before: its asker is gone, and nobody reads the answer."""
    if store.check([_asks(rank)]):
        word = store.get(_asks(rank)).decode()
        store.set(_told(word), name)


def _asked_for(store: dist.Store, rank: int) -> str:
    word = secrets.token_hex(8)
    store.set(_asks(rank), word)
    name = store.get(_told(word)).decode()
    store.set(_came(name, rank), "yes")
    return name


def _asks(rank: int) -> str:
    return f"fedlit/asks/{rank}"


def _told(word: str) -> str:
    return f"fedlit/told/{word}"


def _came(name: str, rank: int) -> str:
    return f"fedlit/{name}/came/{rank}"
