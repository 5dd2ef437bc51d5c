"""Promise: a run that is killed at any moment goes on to the very bits it would have ended in.

The full form kills runs of every method, of a server's optimiser and of samples that workers read, every second one
while it writes a checkpoint: `pytest -m slow -s tests/promises/test_kills.py`.
"""

import os
import random
import signal
import tempfile
from functools import partial
from pathlib import Path

import pytest
import torch
from every_method import METHODS, data_for
from toys import fitted, in_a_child, same, states

from fedlit import FederatedModule
from fedlit.server_optimizers import FedAdam

RUNS = {name: (name, {}, {}) for name in METHODS}
RUNS["FedAvg with FedAdam"] = ("FedAvg", {}, {"server_optimizer": partial(FedAdam, lr=0.1)})
RUNS["FedAvg, read by workers"] = ("FedAvg", {"in_memory": False, "num_workers": 2}, {})
QUICK = {"FML": 2, "DLAD": 2}
FULL = 6  # kills of each run


def watched_by(moment, kind: type) -> type:
    """A method's class, under its own name, that calls before every batch."""
    return type(kind.__name__, (kind,), {"on_train_batch_start": lambda self, *_: moment()})


def run(name: str, folder: Path, moment=None, **options):
    """A run that keeps clients' states on disk; with a moment, it is killed in it."""
    method, of_data, of_run = RUNS[name]
    torch.manual_seed(7)
    module = METHODS[method]()
    if moment is not None:
        parts = [part for part in module.modules() if isinstance(part, FederatedModule)]
        for part in parts[1:] or parts:  # of a method in stages, those have such hooks
            part.__class__ = watched_by(moment, type(part))
    given = {"num_rounds": 2, "personal_memory": 0.0, "default_root_dir": str(folder), **of_run, **options}
    return fitted(module, data_for(method, **of_data), **given)


class Moment:
    """Kills the process at the n-th of its calls; after the last of them it has counted."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self) -> None:
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def while_training(moment: Moment, name: str, folder: Path, **options) -> None:
    """Calls are batches."""
    run(name, folder, moment, **options)


def while_writing(moment: Moment, name: str, folder: Path, **options) -> None:
    """Calls are what moves a file into its place; every second file has been written by half only."""
    replace = os.replace

    def watched(source, target, **given):
        status = Path(source).stat()
        if moment.left == 1 and status.st_ino % 2 and status.st_nlink == 1:
            os.truncate(source, status.st_size // 2)
        moment()
        replace(source, target, **given)

    os.replace = watched
    run(name, folder, **options)


def num_calls(watch, name: str, folder: Path) -> int:
    """How many such calls a whole run has; counted in a child, which is not to change this process."""
    counted = folder.with_suffix(".count")

    def count() -> None:
        moment = Moment(0)
        watch(moment, name, folder)
        counted.write_text(str(-moment.left))

    assert in_a_child(count) == 0
    return int(counted.read_text())


def check(name: str, kills: int, tmp_path: Path) -> None:
    whole = run(name, tmp_path / "whole")
    metrics = Path(whole.log_dir, "metrics.csv").read_bytes()
    draw = random.Random(name)
    calls = {watch: num_calls(watch, name, tmp_path / watch.__name__) for watch in (while_writing, while_training)}
    for number in range(kills):
        watch = (while_writing, while_training)[number % 2]
        moment = Moment(draw.randint(1, max(calls[watch], 1)))
        folder = tmp_path / f"killed_{number}"
        end = in_a_child(lambda: watch(moment, name, folder))  # noqa: B023
        assert end == (-signal.SIGKILL if calls[watch] else 0)
        resumed = run(name, folder, ckpt_path="auto")
        assert same(states(resumed), states(whole))
        assert Path(resumed.log_dir, "metrics.csv").read_bytes() == metrics
        assert not list(folder.rglob(".*.tmp"))


@pytest.mark.parametrize("name", QUICK)
def test_a_killed_run_goes_on_to_the_same_bits(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    check(name, QUICK[name], tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_so_does_one_of_any_method_that_is_killed_more_often(name, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    check(name, FULL, tmp_path)


def test_a_run_that_went_on_otherwise_would_be_seen(tmp_path):
    """The sibling: other bits are other bits."""
    one, other = run("FedAvg", tmp_path / "one"), run("FedAvg", tmp_path / "other", seed=1)
    assert not same(states(one), states(other))


def test_a_killed_run_leaves_nothing_in_the_temporary_folder(tmp_path, monkeypatch):
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    assert in_a_child(lambda: while_training(Moment(13), "FML", tmp_path / "killed")) == -signal.SIGKILL
    assert not list(temporary.iterdir())
    living = run("FML", tmp_path / "living")
    assert living.personal_states
    assert not list(temporary.iterdir())
    maps = Path("/proc/self/maps")
    assert not maps.exists() or f"{temporary}/" in maps.read_text()  # there it lies, without a name
