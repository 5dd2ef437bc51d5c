"""Slow, stopped, failed and dead ranks, told apart: two real processes of a federation."""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
from forked import exit_codes, forked
from lightning.pytorch import Callback
from toys import SGD, equal, fitted, linear

from fedlit import FedAvg
from fedlit.engine.cluster import liveness
from fedlit.engine.cluster.strategy import join_attempt

TIMEOUT = 2.0
SOON = timedelta(seconds=20)


class InRound(Callback):
    """Does something on one rank when the second round starts."""

    def __init__(self, rank, what):
        self.rank, self.what = rank, what

    def on_round_start(self, federation, module, number, clients):
        if number == 2 and federation.fabric.global_rank == self.rank:
            self.what()


class Pair:
    """Two ranks, to one of which something happens in the second round."""

    def __init__(self, folder, rank, what, **options):
        self.folder = folder

        def work(own_rank):
            (folder / f"pid_{own_rank}").write_text(str(os.getpid()))
            fit(devices=2, callbacks=[InRound(rank, what)], process_timeout=TIMEOUT, **options)

        self.processes = forked(work, folder)
        self.start = time.monotonic()

    def end(self, *stopped):
        """Exit codes and output of each rank; those that are stopped are killed once the others have ended."""
        codes = {rank: exit_codes([self.processes[rank]])[0] for rank in range(2) if rank not in stopped}
        for rank in stopped:
            os.kill(self.processes[rank], signal.SIGKILL)
            codes[rank] = exit_codes([self.processes[rank]])[0]
        assert time.monotonic() - self.start < 20
        return [codes[0], codes[1]], [(self.folder / f"rank_{rank}.txt").read_text() for rank in range(2)]


def fit(**options):
    torch.manual_seed(1)
    return fitted(FedAvg(linear, SGD), enable_progress_bar=True, **options)


def kill():
    os.kill(os.getpid(), signal.SIGKILL)


def stop():
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named_once_by_the_other(rank, tmp_path):
    codes, output = Pair(tmp_path, rank, kill).end()
    assert codes[rank] == -signal.SIGKILL
    assert codes[1 - rank] == 3, output
    assert output[1 - rank].count(f"rank {rank} of 2 has died (its connection broke)") == 1, output


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_stays_stopped_is_taken_for_dead(rank, tmp_path):
    """Where it is rank 0, the store does not answer any more."""
    codes, output = Pair(tmp_path, rank, stop).end(rank)
    assert codes[1 - rank] == 3, output
    assert f"rank {rank} of 2 gave no sign of life for 2 s (`trainer.process_timeout`)" in output[1 - rank]


@pytest.mark.slow
def test_a_rank_that_is_stuck_ends_all_the_same(tmp_path):
    def wait_for_nothing():
        os.kill(int((tmp_path / "pid_1").read_text()), signal.SIGKILL)
        time.sleep(60)

    codes, output = Pair(tmp_path, 0, wait_for_nothing).end()
    assert codes == [3, -signal.SIGKILL]
    assert output[0].count("fedlit: error: rank 1 of 2 ") == 1


@pytest.mark.slow
def test_a_run_that_was_stopped_as_a_whole_has_missed_nothing(tmp_path):
    pair = Pair(tmp_path, 1, lambda: time.sleep(1))
    time.sleep(0.8)
    for number in (signal.SIGSTOP, signal.SIGCONT):
        for process in pair.processes:
            os.kill(process, number)
        time.sleep(1.5 * TIMEOUT)
    codes, output = pair.end()
    assert codes == [0, 0], output


@pytest.mark.slow
def test_a_slow_rank_is_waited_for_and_named_and_comes_to_the_same_bits(tmp_path):
    def work(rank):
        slow = InRound(1, lambda: time.sleep(1.5 * TIMEOUT))
        federation = fit(devices=2, callbacks=[slow], process_timeout=TIMEOUT)
        torch.save(federation.global_state, tmp_path / f"{rank}.pt")

    assert exit_codes(forked(work, tmp_path)) == [0, 0]
    assert "fedlit: waiting for rank 1, which is alive and at work" in (tmp_path / "rank_0.txt").read_text()
    assert equal(torch.load(tmp_path / "1.pt"), fit().global_state)


def test_what_all_refuse_or_warn_of_is_for_one_to_say(tmp_path):
    def work(rank):
        fit(devices=2)
        alive = liveness.current()
        print("warns", alive.is_for_us_to_warn("a\nwarning"), "refuses", alive.refuse())
        dist.barrier()  # else one ends the other before it asks

    exit_codes(forked(work, tmp_path))
    output = [(tmp_path / f"rank_{rank}.txt").read_text() for rank in range(2)]
    for what in ("warns", "refuses"):
        assert sorted(f"{what} True" in text for text in output) == [False, True], output


def test_one_that_refuses_alone_ends_the_other(tmp_path):
    def work(rank):
        fit(devices=2)
        if rank == 0:
            time.sleep(60)
        assert liveness.current().refuse()

    assert exit_codes(forked(work, tmp_path)) == [2, 0]


def test_clients_in_forked_processes_leave_the_store_alone(tmp_path):
    def work(rank):
        federation = fit(devices=2, client_timeout=60)
        torch.save(federation.global_state, tmp_path / f"{rank}.pt")

    assert exit_codes(forked(work, tmp_path)) == [0, 0], (tmp_path / "rank_0.txt").read_text()
    assert equal(torch.load(tmp_path / "1.pt"), fit().global_state)


def attempts(store, world_size):
    """What every rank of an attempt is given; each asks in a thread of its own."""
    with ThreadPoolExecutor(world_size) as threads:
        asked = [threads.submit(join_attempt, store, rank, world_size, SOON, {}) for rank in range(world_size)]
        return [attempt.result(timeout=30) for attempt in asked]


def test_ranks_that_a_launcher_restarts_meet_where_nothing_of_the_dead_is_found():
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=0.1))
    with pytest.raises(RuntimeError):  # rank 2 asks, and rank 0 has died
        join_attempt(store, 2, 3, SOON, {})
    store.set_timeout(SOON)
    for _ in range(2):
        first, *others = attempts(store, 3)
        assert not first.check(["address"])
        first.set("address", "of rank 0")
        assert [other.get("address") for other in others] == [b"of rank 0"] * 2


def test_rank_0_names_who_did_not_come():
    with pytest.raises(TimeoutError, match=r"rank 1, 2 did not come within 0\.1 s"):
        join_attempt(dist.HashStore(), 0, 3, timedelta(seconds=0.1), {})
