"""Checkpoints: plain, checked, never half."""

import errno
import os
from contextlib import suppress

import pytest
import torch
from toys import SGD, SmallCNN, fitted, full_after

from fedlit import FineTuned
from fedlit.records.checkpoint import (
    FORMAT,
    KEYS,
    Checkpoints,
    Damaged,
    damage,
    dump,
    keep,
    load,
    load_last,
    save,
)

CONTENT = {**dict.fromkeys(KEYS, 0), "global_state": {"w": torch.arange(3.0)}, "round": 2, "format": FORMAT}


def at_round(round):
    return {**CONTENT, "round": round}


def flip(path, position=None):
    """Change a byte, by default the first of the content that torch has pickled."""
    data = bytearray(path.read_bytes())
    at = data.index(b"\x80\x02}") if position is None else int(position * len(data))
    data[at] ^= 1
    path.write_bytes(data)


def test_what_is_saved_is_loaded(tmp_path):
    save(CONTENT, tmp_path / "a.ckpt")
    assert torch.equal(load(tmp_path / "a.ckpt")["global_state"]["w"], CONTENT["global_state"]["w"])
    assert [path.name for path in tmp_path.iterdir()] == ["a.ckpt"]


@pytest.mark.parametrize("length", [0, 1, 22, 1000, -1])
def test_a_file_that_was_cut_is_damaged(length, tmp_path):
    save(CONTENT, path := tmp_path / "a.ckpt")
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(Damaged):
        load(path)


def test_a_kept_checkpoint_outlives_its_source(tmp_path):
    save(CONTENT, path := tmp_path / "last.ckpt")
    keep(path, tmp_path / "best.ckpt")
    save(at_round(3), path)
    assert (load(tmp_path / "best.ckpt")["round"], load(path)["round"]) == (2, 3)


def test_a_damaged_last_falls_back_on_the_one_before_and_nothing_else_does(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round in (1, 2, 3):
        checkpoints.save(at_round(round), improved=round == 1)
    assert load_last(tmp_path / "last.ckpt")[1:] == (tmp_path / "last.ckpt", None)
    for name in ("last", "best"):
        flip(tmp_path / f"{name}.ckpt")
    content, path, problem = load_last(tmp_path / "last.ckpt")
    assert (content["round"], path.name) == (2, "previous.ckpt")
    assert problem.endswith("does not match its checksum")
    with pytest.raises(Damaged, match=r"best.ckpt is damaged"):
        load_last(tmp_path / "best.ckpt")


def test_a_last_that_is_gone_falls_back_likewise(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round in (1, 2):
        checkpoints.save(at_round(round), improved=False)
    (tmp_path / "last.ckpt").unlink()
    content, _, problem = load_last(tmp_path / "last.ckpt")
    assert (content["round"], problem) == (1, f"`--ckpt_path` {tmp_path}/last.ckpt is gone")


def test_where_both_are_damaged_both_are_named_in_one_line(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for round in (1, 2):
        checkpoints.save(at_round(round), improved=False)
        flip(tmp_path / "last.ckpt")
    save(at_round(1), tmp_path / "previous.ckpt")
    flip(tmp_path / "previous.ckpt")
    with pytest.raises(Damaged, match=r"last.ckpt is damaged: .*; and .*previous.ckpt is damaged: [^\n]*$"):
        load_last(tmp_path / "last.ckpt")


class Killed(BaseException):
    """In place of kill -9: nothing after it is run, for nothing that `save` does is undone by it."""


MOVES = ("replace", "link", "unlink")


def killed_at(moment, when, monkeypatch):
    """Die at the n-th step that changes the folder, before it is done or right after it; half a file is a step, too."""
    count = 0

    def counted(name, step):
        def call(*args, **kwargs):
            nonlocal count
            count += 1
            if count == moment and when == "before":
                if name == "dump":
                    args[1].write_bytes(b"half a file")
                raise Killed
            result = step(*args, **kwargs)
            if count == moment:
                raise Killed
            return result

        return call

    for name in MOVES:
        monkeypatch.setattr(os, name, counted(name, getattr(os, name)))
    monkeypatch.setattr("fedlit.records.checkpoint.dump", counted("dump", dump))
    return lambda: count


@pytest.mark.parametrize("start", ["healthy", "last damaged", "last cut", "resumed from best", "first save"])
@pytest.mark.parametrize("improved", [True, False])
@pytest.mark.parametrize("when", ["before", "after"])
def test_killed_at_any_moment_of_a_save_one_good_checkpoint_stands(start, improved, when, tmp_path):
    moment = 0
    while True:
        moment += 1
        folder = tmp_path / f"{moment}"
        folder.mkdir()
        read, checkpoints = a_start(start, folder)
        with pytest.MonkeyPatch.context() as patch:
            count = killed_at(moment, when, patch)
            with suppress(Killed):
                checkpoints.save(at_round(9), improved)
        if count() < moment:
            break
        if start == "first save":
            assert not (folder / "last.ckpt").exists() or load(folder / "last.ckpt")["round"] == 9
            continue
        content, _, _ = load_last(folder / "last.ckpt")
        assert content["round"] in (read, 9)
        for path in folder.glob("*.ckpt"):  # what stood there good is still good, or was replaced by what is
            assert damage(path) is None or (path.name == "last.ckpt" and start.startswith("last"))
    assert moment > 3


def a_start(start, folder):
    """A folder with checkpoints, the round that a run has gone on from, and what it saves by."""
    before = Checkpoints(folder)
    if start == "first save":
        return 0, before
    for round in (1, 2, 3):
        before.save(at_round(round), improved=round == 2)
    if start == "last damaged":
        flip(folder / "last.ckpt")
    if start == "last cut":
        (folder / "last.ckpt").write_bytes(b"")
    if start == "resumed from best":
        return 3, Checkpoints(folder, folder / "best.ckpt")
    content, path, _ = load_last(folder / "last.ckpt")
    return content["round"], Checkpoints(folder, path)


@pytest.mark.parametrize("written", [0, 100, 3000, None])
def test_a_full_disk_leaves_what_was_there_and_nothing_else(written, tmp_path, monkeypatch):
    save(CONTENT, path := tmp_path / "last.ckpt")
    room = path.stat().st_size - 1 if written is None else written
    full_after(room, monkeypatch)
    with pytest.raises(OSError, match="No space left") as full:
        save({**at_round(3), "more": torch.zeros(9999)}, path)
    assert full.value.errno == errno.ENOSPC
    monkeypatch.undo()
    assert load(path)["round"] == 2
    assert [entry.name for entry in tmp_path.iterdir()] == ["last.ckpt"]


def test_code_in_a_file_is_never_run(tmp_path):
    dump({"global_state": print, **CONTENT, "evil": print}, tmp_path / "evil.ckpt")
    with pytest.raises(ValueError, match="not a checkpoint that can be read safely"):
        load(tmp_path / "evil.ckpt")


def test_a_runs_checkpoints_are_plain_torch_files():
    federation = fitted(FineTuned(SmallCNN, SGD))
    for name in ("last", "previous", "best"):
        content = torch.load(f"{federation.log_dir}/checkpoints/{name}.ckpt", weights_only=True)
        assert content["global_state"].keys() == federation.global_state.keys()
    assert content["round"] == federation.state.scores.best["acc/personal_on_own"]["round"]
    last = torch.load(f"{federation.log_dir}/checkpoints/last.ckpt", weights_only=True)
    assert (last["round"], sorted(last["personal_states"])) == (4, [0, 1, 2])


@pytest.mark.parametrize("key", KEYS)
def test_a_file_without_a_key_is_no_checkpoint(key, tmp_path):
    save({k: v for k, v in CONTENT.items() if k != key}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=f"not a checkpoint of fedlit: it lacks {key}"):
        load(tmp_path / "a.ckpt")


def test_a_format_of_another_time_is_refused(tmp_path):
    save({**CONTENT, "format": 99, "made_with": {"fedlit": "7.0"}}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=r"has format 99, of fedlit 7\.0, but this fedlit reads 4 and 5\.$"):
        load(tmp_path / "a.ckpt")
