"""Promise: a checkpoint that is not what was written is never taken for one that is.

The full form flips 200 bits of the files of real runs, half of them of a run of format 3 with its note whole, emptied
or gone, and says what became of each: `pytest -m slow -s tests/promises/test_damage.py`.
"""

import hashlib
import random
from collections import Counter
from pathlib import Path

import pytest
import torch
from toys import SGD, SmallCNN, equal, fitted

from fedlit import LocalOnly
from fedlit.records.checkpoint import BEFORE_4, Damaged, load, load_last, note

QUICK = 10
FULL = 200


def run(folder: Path, **options):
    torch.manual_seed(7)
    return fitted(LocalOnly(SmallCNN, SGD), num_rounds=3, default_root_dir=str(folder), **options)


def checkpoints_of(folder: Path) -> Path:
    return folder / "lightning_logs" / "version_0" / "checkpoints"


def as_format_3(path: Path) -> None:
    """The same checkpoint as fedlit wrote it before the digest came into the file."""
    content = torch.load(path, weights_only=True)
    path.unlink()
    torch.save({**{key: content[key] for key in BEFORE_4}, "format": 3}, path)
    note(path).write_text(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n")


def flipped(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def outcome(last: Path) -> str:
    """What becomes of a damaged last: fallen back from, and refused where there is nothing to fall back upon."""
    try:
        load(last)
    except Damaged:
        content, path, reason = load_last(last)
        assert (content["round"], path.name) == (2, "previous.ckpt")
        assert reason is not None
        return "fallen back"
    return "accepted"


@pytest.mark.parametrize("flips", [QUICK, pytest.param(FULL, marks=pytest.mark.slow)])
def test_no_flipped_bit_is_accepted_with_or_without_a_note(flips, tmp_path):
    run(tmp_path / "new")
    run(tmp_path / "old")
    places = {"4": checkpoints_of(tmp_path / "new") / "last.ckpt", "3": checkpoints_of(tmp_path / "old") / "last.ckpt"}
    as_format_3(places["3"])
    as_format_3(places["3"].with_name("previous.ckpt"))
    draw = random.Random(0)
    found: Counter[tuple[str, str]] = Counter()
    for number in range(flips):
        kind = "43"[number % 2]
        last = places[kind]
        whole = last.read_bytes()
        noted = note(last).read_text() if kind == "3" else ""
        told = kind
        if kind == "3":
            told = draw.choice(["3, note whole", "3, note empty", "3, note gone"])
            {"whole": bool, "empty": lambda: note(last).write_text(""), "gone": note(last).unlink}[told.split()[-1]]()  # noqa: B023
        last.write_bytes(flipped(whole, draw.randrange(8 * len(whole))))
        found[told, outcome(last)] += 1
        last.write_bytes(whole)
        if kind == "3":
            note(last).write_text(noted)
    print(f"\n{flips} flipped bits: {dict(found)}")
    assert {result for _, result in found} == {"fallen back"}
    assert sum(found.values()) == flips


def test_a_file_that_is_whole_is_accepted(tmp_path):
    """The sibling: what is refused above is refused for its one bit."""
    run(tmp_path)
    assert outcome(checkpoints_of(tmp_path) / "last.ckpt") == "accepted"


def test_a_run_whose_last_checkpoint_is_damaged_ends_in_the_same_bits(tmp_path):
    whole = run(tmp_path / "whole")
    run(tmp_path / "damaged")
    last = checkpoints_of(tmp_path / "damaged") / "last.ckpt"
    last.write_bytes(flipped(last.read_bytes(), 8 * 5000))
    with pytest.warns(UserWarning, match=r"is damaged: .*; going back to previous.ckpt, of round 2"):
        resumed = run(tmp_path / "damaged", ckpt_path="last")
    assert all(equal(state, resumed.personal_states[k]) for k, state in whole.personal_states.items())
    metrics = [Path(federation.log_dir, "metrics.csv").read_bytes() for federation in (whole, resumed)]
    assert metrics[0] == metrics[1]
