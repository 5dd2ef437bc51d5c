"""Slow, stopped, failed and dead ranks, told apart: two real processes of a federation."""

import os
import signal
import time

import pytest
import torch
from forked import exit_codes, forked
from lightning.pytorch import Callback
from toys import SGD, equal, fitted, linear

from fedlit import FedAvg

TIMEOUT = 2.0


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
def test_a_rank_that_stays_stopped_is_taken_for_dead(rank, tmp_path):
    """Where it is rank 0, the store does not answer any more."""
    codes, output = Pair(tmp_path, rank, stop).end(rank)
    assert codes[1 - rank] == 3, output
    assert f"rank {rank} of 2 gave no sign of life for 2 s (`trainer.process_timeout`)" in output[1 - rank]


@pytest.mark.slow
def test_a_slow_rank_is_waited_for_and_named_and_comes_to_the_same_bits(tmp_path):
    def work(rank):
        slow = InRound(1, lambda: time.sleep(1.5 * TIMEOUT))
        federation = fit(devices=2, callbacks=[slow], process_timeout=TIMEOUT)
        torch.save(federation.global_state, tmp_path / f"{rank}.pt")

    assert exit_codes(forked(work, tmp_path)) == [0, 0]
    assert "fedlit: waiting for rank 1, which is alive and at work" in (tmp_path / "rank_0.txt").read_text()
    assert equal(torch.load(tmp_path / "1.pt"), fit().global_state)


def test_clients_in_forked_processes_leave_the_store_alone(tmp_path):
    def work(rank):
        federation = fit(devices=2, client_timeout=60)
        torch.save(federation.global_state, tmp_path / f"{rank}.pt")

    assert exit_codes(forked(work, tmp_path)) == [0, 0], (tmp_path / "rank_0.txt").read_text()
    assert equal(torch.load(tmp_path / "1.pt"), fit().global_state)
