"""Visits in processes of their own: the same bits, and an end for whoever finds none."""

import os
import signal
import time

import pytest
import torch
from toys import SGD, SmallCNN, equal, fitted, linear

from fedlit import FedAvg
from fedlit.engine.guards.child_process import check_timeout, in_child
from fedlit.engine.plan import Interrupted
from fedlit.methods import FML
from fedlit.records.round_record import Failure


def brought(work, timeout=30.0, should_stop=bool):
    return in_child(work, timeout, should_stop, pack=lambda value: value, unpack=lambda value: value)


@pytest.mark.parametrize("method", [lambda: FML(SmallCNN, SmallCNN, SGD), lambda: FedAvg(SmallCNN, SGD)])
def test_visits_in_processes_of_their_own_end_in_the_same_bits(method):
    ends = []
    for timeout in (None, 60.0):
        torch.manual_seed(0)
        federation = fitted(method(), client_timeout=timeout, num_rounds=2)
        ends.append({"server": federation.global_state, **federation.personal_states})
    assert ends[0].keys() == ends[1].keys()
    assert all(equal(ends[0][owner], ends[1][owner]) for owner in ends[0])


def test_what_a_child_returns_comes_back():
    found = brought(lambda: {"w": torch.arange(3), "pid": os.getpid()})
    assert found["w"].tolist() == [0, 1, 2]
    assert found["pid"] != os.getpid()


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda: os._exit(7), "ended by itself, with exit code 7"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "died of SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), r"died of SIGKILL \(perhaps there was no memory left\)"),
        (lambda: print, "cannot be read without running code"),
    ],
)
def test_a_child_that_brings_nothing_says_why(work, told, capfd):
    found = brought(work)
    assert isinstance(found, Failure)
    with pytest.raises(AssertionError, match=told):
        raise AssertionError(found.reason)


def test_a_child_that_hangs_is_ended_with_all_that_it_has_started():
    def hangs():
        if os.fork() == 0:
            time.sleep(100)
        time.sleep(100)

    start = time.monotonic()
    found = brought(hangs, timeout=0.3)
    assert "longer than `trainer.client_timeout`, 0.3 s" in found.reason
    assert time.monotonic() - start < 20


def test_a_child_is_ended_when_the_run_is_to_end():
    with pytest.raises(Interrupted):
        brought(lambda: time.sleep(100), should_stop=lambda: True)


def test_no_child_is_left_behind():
    brought(lambda: 1)
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


@pytest.mark.parametrize(
    ("num_threads", "device", "told"), [(2, "cpu", "`trainer.num_threads: 1`, got 2"), (1, "cuda", "accelerator: cpu")]
)
def test_what_cannot_be_forked_is_refused(num_threads, device, told):
    with pytest.raises(ValueError, match=told):
        check_timeout(1.0, num_threads, torch.device(device))
    check_timeout(None, num_threads, torch.device(device))


def test_a_fit_with_threads_is_refused_at_the_door():
    with pytest.raises(ValueError, match=r"`trainer\.client_timeout` forks processes"):
        fitted(FedAvg(linear, SGD), client_timeout=5, num_threads=2)
