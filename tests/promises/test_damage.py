"""Promise: a checkpoint that is not what was written is never taken for one that is; the one before it is.

The full form flips 100 bits: `pytest -m slow tests/promises/test_damage.py`.
"""

import random
import shutil
import warnings
from pathlib import Path

import pytest
from toys import SGD, SmallCNN, fitted, same, seeded, states

from fedlit import LocalOnly


def run(folder: Path, **options):
    return fitted(seeded(LocalOnly, SmallCNN, SGD), default_root_dir=str(folder), **options)


def metrics(federation) -> bytes:
    return Path(federation.log_dir, "metrics.csv").read_bytes()


@pytest.mark.parametrize("flips", [5, pytest.param(100, marks=pytest.mark.slow)])
def test_with_any_flipped_bit_a_run_goes_back_a_round_or_finds_what_was_written(flips, tmp_path):
    whole = run(tmp_path / "whole")
    told = 0
    draw = random.Random(0)
    for number in range(flips):
        folder = tmp_path / f"damaged_{number}"
        shutil.copytree(tmp_path / "whole", folder)
        last = folder / "lightning_logs" / "version_0" / "checkpoints" / "last.ckpt"
        content = bytearray(last.read_bytes())
        bit = draw.randrange(8 * len(content))
        content[bit // 8] ^= 1 << bit % 8
        last.write_bytes(content)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            resumed = run(folder, ckpt_path="last")
        told += any("; going back to previous.ckpt, of round 2" in str(warning.message) for warning in caught)
        assert same(states(resumed), states(whole))
        assert metrics(resumed) == metrics(whole)
    assert told > flips / 2  # the others are in the padding of the archive


def test_a_file_that_is_whole_is_accepted(tmp_path):
    """The sibling: what is refused above is refused for its one bit."""
    run(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(tmp_path, ckpt_path="last", num_rounds=4).state.round == 4
