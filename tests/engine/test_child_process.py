"""Visits in processes of their own: the same bits, and an end for whoever finds none."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
import torch
from toys import SGD, SmallCNN, equal, fitted, linear, rows

from fedlit import FedAvg
from fedlit.engine.child_process import check_timeout, in_child
from fedlit.engine.client_runner import pack
from fedlit.engine.plan import Interrupted
from fedlit.methods import FML
from fedlit.records.round_record import Failure

CHILDREN = Path(f"/proc/self/task/{os.getpid()}/children")


def brought(work, timeout=30.0, should_stop=bool):
    return in_child(work, timeout, should_stop, pack=lambda value: value, unpack=lambda value: value)


def events(federation):
    return [json.loads(line) for line in Path(federation.log_dir, "events.jsonl").read_text().splitlines()]


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


def test_a_child_that_has_closed_its_descriptors_and_hangs_is_ended_in_time():
    def hangs():
        os.closerange(3, 256)
        time.sleep(100)

    assert "longer than `trainer.client_timeout`, 0.3 s" in brought(hangs, timeout=0.3).reason


@pytest.mark.parametrize(
    ("written", "reason"),
    [(b"x", "longer than `trainer.client_timeout`, 0.3 s"), (b"d", "its answer cannot be used: EOFError")],
)
def test_what_a_child_writes_to_the_pipe_by_itself_neither_holds_nor_ends_the_run(written, reason, monkeypatch):
    pipe = os.pipe()
    monkeypatch.setattr(os, "pipe", lambda: pipe)

    def forges():
        os.write(pipe[1], written)
        time.sleep(100)

    assert reason in brought(forges, timeout=0.3).reason


def with_upload(**forged):
    return lambda packed: {**packed, "upload": {**packed["upload"], **forged}}


def with_far_weights(packed):
    state = {name: torch.full_like(tensor, 1e30) for name, tensor in packed["upload"]["state"].items()}
    return with_upload(state=state)(packed)


@pytest.mark.parametrize(
    ("forge", "reason"),
    [
        (with_far_weights, "holds 1e+30, whose square overflows"),
        (with_upload(weight=1e30), "weight must be positive and at most 1e+09, got 1e+30"),
        (lambda packed: {**packed, "scores": {"acc": "1"}}, "`scores` must be numbers by name"),
        (lambda packed: {**packed, "memory": {"state": {"w": 1.0}}}, "what a client keeps must be tensors by name"),
        (lambda packed: 7, "its answer cannot be used: TypeError"),
    ],
)
def test_what_a_child_forges_leaves_its_client_out_and_no_other(forge, reason, tmp_path, monkeypatch):
    def forged(visited):
        packed = pack(visited)
        return forge(packed) if packed["upload"]["client"] == 1 else packed

    monkeypatch.setattr("fedlit.engine.client_runner.pack", forged)  # it is called by the child
    federation = fitted(FedAvg(linear, SGD), client_timeout=60.0, num_rounds=1, default_root_dir=str(tmp_path))
    [left_out] = [event for event in events(federation) if event["event"] == "left_out"]
    assert left_out["client"] == 1
    assert reason in left_out["reason"]


def test_what_a_child_says_of_another_client_is_not_believed(tmp_path, monkeypatch):
    def forged(found):
        return {**vars(found), "values": [(0, *value[1:]) for value in found.values]}

    monkeypatch.setattr("fedlit.engine.evaluation.pack", forged)  # it is called by the child
    federation = fitted(FML(linear, linear, SGD), client_timeout=60.0, num_rounds=1, default_root_dir=str(tmp_path))
    assert {row["client"] for row in rows(federation) if row["model"] == "personal"} == {"0"}
    left_out = [event for event in events(federation) if event["event"] == "left_out"]
    assert [event["client"] for event in left_out] == [1, 2]
    assert (
        "could not be evaluated: its answer cannot be used: ValueError: it tells of client 0" in left_out[0]["reason"]
    )


def test_a_child_is_ended_when_the_run_is_to_end():
    with pytest.raises(Interrupted):
        brought(lambda: time.sleep(100), should_stop=lambda: True)


@pytest.mark.skipif(not CHILDREN.exists(), reason="The children of a process are listed by Linux.")
def test_no_child_is_left_behind():
    before = CHILDREN.read_text()  # other tests may keep some
    brought(lambda: 1)
    assert CHILDREN.read_text() == before


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
