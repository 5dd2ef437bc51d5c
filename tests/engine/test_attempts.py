"""Processes that a launcher restarts meet anew, in a store in which those before them have left their addresses."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch.distributed as dist

from fedlit.engine.cluster.attempts import place_of_this_attempt

SOON = timedelta(seconds=20)


def places(store: dist.Store, world_size: int) -> list[dist.Store]:
    """What every process of an attempt is given, by rank; each asks in a thread of its own."""
    with ThreadPoolExecutor(world_size) as threads:
        asked = [threads.submit(place_of_this_attempt, store, rank, world_size, SOON) for rank in range(world_size)]
        return [place.result(timeout=30) for place in asked]


@pytest.fixture
def store() -> dist.Store:
    store = dist.HashStore()
    store.set_timeout(SOON)
    return store


def test_all_processes_of_an_attempt_meet_in_one_place(store):
    first, *others = places(store, 3)
    first.set("address", "of rank 0")
    assert [other.get("address") for other in others] == [b"of rank 0"] * 2


def test_an_attempt_finds_nothing_of_the_one_before(store):
    places(store, 3)[0].set("address", "of a process that has died")
    for place in places(store, 3):
        assert not place.check(["address"])


def test_the_store_itself_keeps_what_was_left(store):
    store.set("address", "of a process that has died")
    places(store, 3)
    assert store.check(["address"])


def test_a_question_that_a_dead_process_has_left_does_not_mislead_the_next(store):
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(RuntimeError):  # rank 2 asks, and rank 0 has died
        place_of_this_attempt(store, 2, 3, SOON)
    store.set_timeout(SOON)
    first, *others = places(store, 3)
    first.set("address", "of rank 0")
    assert [other.get("address") for other in others] == [b"of rank 0"] * 2


def test_rank_0_names_who_did_not_come(store):
    with pytest.raises(TimeoutError, match=r"rank 1, 2 did not come within 0\.1 s"):
        place_of_this_attempt(store, 0, 3, timedelta(seconds=0.1))
