"""A client that kills its process: named after the restart, and left out of its rounds."""

import json
import os
import signal
from pathlib import Path

import pytest
import torch
from test_laws import in_a_child
from toys import SGD, equal, fitted, linear

from fedlit.methods import FedAvg
from fedlit.notices import Notice
from fedlit.records.visit_note import VisitNote, taken_notes


class Deadly(FedAvg):
    """Client 1 ends whatever process it is visited in, from round 2 on."""

    def on_client_start(self, client):
        if client.id == 1 and client.round >= 2:
            os.kill(os.getpid(), signal.SIGKILL)


class Failing(FedAvg):
    """It raises, in the same visits."""

    def on_client_start(self, client):
        if client.id == 1 and client.round >= 2:
            raise RuntimeError


def run(kind, folder, **options):
    torch.manual_seed(1)
    return fitted(kind(linear, SGD), default_root_dir=str(folder), **options)


def test_a_client_that_kills_its_process_is_named_after_the_restart_and_left_out(tmp_path):
    assert in_a_child(lambda: run(Deadly, tmp_path)) == -signal.SIGKILL
    with pytest.warns(Notice, match="Client 1 was being .* died; from now on it trains in a process of its own, so"):
        resumed = run(Deadly, tmp_path, ckpt_path="auto")
    assert equal(resumed.global_state, run(Failing, tmp_path / "other").global_state)
    folder = Path(resumed.log_dir)
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [event["client"] for event in events if event["event"] == "suspected"] == [1]
    assert [(e["round"], e["client"]) for e in events if "died of SIGKILL" in str(e)] == [(2, 1), (3, 1)]
    assert taken_notes(folder) == []


def test_without_a_note_it_would_kill_the_next_process_as_well(tmp_path):
    assert in_a_child(lambda: run(Deadly, tmp_path)) == -signal.SIGKILL
    assert taken_notes(tmp_path / "lightning_logs/version_0") == [1]
    assert in_a_child(lambda: run(Deadly, tmp_path, ckpt_path="auto")) == -signal.SIGKILL


def test_only_a_visit_that_does_not_end_leaves_a_note(tmp_path):
    note = VisitNote(tmp_path, 3)
    visit = note.of(12)
    visit.__enter__()
    assert (tmp_path / ".visiting_3").read_bytes().startswith(b"12\0")
    assert not visit.__exit__(RuntimeError, RuntimeError(), None)
    assert taken_notes(tmp_path) == []
    cut = VisitNote(tmp_path, 3).of(12)
    cut.__enter__()
    assert taken_notes(tmp_path) == [12]
    assert taken_notes(tmp_path) == []
