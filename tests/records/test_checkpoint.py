"""Checkpoints: plain, checked, never half."""

import hashlib

import pytest
import torch
from conftest import SGD, SmallCNN, fitted

from fedlit import FineTuned
from fedlit.records.checkpoint import FORMAT, KEYS, keep, known_digests, load, note, save

CONTENT = {**dict.fromkeys(KEYS, 0), "global_state": {"w": torch.arange(3.0)}, "round": 2, "format": FORMAT}


def test_what_is_saved_is_loaded(tmp_path):
    save(CONTENT, tmp_path / "a.ckpt")
    assert torch.equal(load(tmp_path / "a.ckpt")["global_state"]["w"], CONTENT["global_state"]["w"])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.ckpt", "a.ckpt.sha256"]


def test_the_note_beside_it_is_its_sha256(tmp_path):
    save(CONTENT, path := tmp_path / "a.ckpt")
    assert note(path).read_text() == f"{hashlib.sha256(path.read_bytes()).hexdigest()}  a.ckpt\n"


@pytest.mark.parametrize("position", [0.1, 0.5, 0.9])
def test_a_flipped_bit_is_noticed(position, tmp_path):
    save(CONTENT, path := tmp_path / "a.ckpt")
    data = bytearray(path.read_bytes())
    data[int(position * len(data))] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match=r"damaged: it does not match a.ckpt.sha256"):
        load(path)


def test_a_kept_checkpoint_outlives_its_source(tmp_path):
    save(CONTENT, path := tmp_path / "last.ckpt")
    keep(path, tmp_path / "best.ckpt")
    save({**CONTENT, "round": 3}, path)
    assert (load(tmp_path / "best.ckpt")["round"], load(path)["round"]) == (2, 3)


def test_while_a_file_is_replaced_old_and_new_both_match_the_note(tmp_path, monkeypatch):
    save(CONTENT, path := tmp_path / "a.ckpt")
    seen = []
    replace = __import__("os").replace

    def watch(source, target):
        replace(source, target)
        seen.append((len(known_digests(path)), hashlib.sha256(path.read_bytes()).hexdigest() in known_digests(path)))

    monkeypatch.setattr("os.replace", watch)
    save({**CONTENT, "round": 3}, path)
    assert seen == [(2, True), (2, True), (1, True)]


def test_code_in_a_file_is_never_run(tmp_path):
    torch.save({"global_state": print, **CONTENT, "evil": print}, tmp_path / "evil.ckpt")
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
    save({**CONTENT, "format": 99}, tmp_path / "a.ckpt")
    with pytest.raises(ValueError, match=f"has format 99, but this fedlit reads {FORMAT}"):
        load(tmp_path / "a.ckpt")
