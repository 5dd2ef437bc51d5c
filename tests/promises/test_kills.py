"""Promise: a run that is killed at any moment goes on to the very bits it would have ended in.

The full form kills runs of ten methods, of a server's optimiser and of samples that workers read, every second one
while it writes a checkpoint, and some of them again after they have gone on:
`pytest -m slow -s tests/promises/test_kills.py`.
"""

import os
import random
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from promises.held_states import same, states
from test_laws import in_a_child
from toys import SGD, SmallCNN, fitted, linear, toy_data

from fedlit.engine.client_store import PREFIX
from fedlit.engine.fit import Fit
from fedlit.methods import (
    DLAD,
    FML,
    SCAFFOLD,
    Ditto,
    FedAvg,
    FedDF,
    FederatedModule,
    FedMD,
    FedProto,
    FineTuned,
    MixtureOfExperts,
)
from fedlit.records import checkpoint, torch_file
from fedlit.server_optimizers import FedAdam

ADAM = partial(torch.optim.Adam, lr=0.01)
PLAIN = partial(torch.optim.SGD, lr=0.1)
OTHERS = {"client_networks": {2: linear}}


@dataclass(frozen=True)
class Run:
    """A method, and what its run has that others have not."""

    build: Callable[[], FederatedModule]
    data: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)


POOL = {"public": 0.5}
RUNS = {
    "FedAvg": Run(lambda: FedAvg(SmallCNN, SGD)),
    "FedAvg with FedAdam": Run(lambda: FedAvg(SmallCNN, SGD), options={"server_optimizer": partial(FedAdam, lr=0.1)}),
    "FedAvg, read by workers": Run(lambda: FedAvg(SmallCNN, SGD), {"in_memory": False, "num_workers": 2}),
    "FineTuned": Run(lambda: FineTuned(SmallCNN, SGD)),
    "FML": Run(lambda: FML(SmallCNN, linear, SGD)),
    "Ditto": Run(lambda: Ditto(SmallCNN, SGD)),
    "SCAFFOLD": Run(lambda: SCAFFOLD(SmallCNN, PLAIN)),
    "FedProto": Run(lambda: FedProto(SmallCNN, PLAIN, lam=0.1)),
    "FedDF": Run(lambda: FedDF(SmallCNN, SGD, **OTHERS), POOL),
    "FedMD": Run(lambda: FedMD(SmallCNN, SGD, subset=8, public_epochs=1, private_epochs=1, **OTHERS), POOL),
    "MixtureOfExperts": Run(lambda: MixtureOfExperts(linear, ADAM, epochs=2)),
    "DLAD": Run(lambda: DLAD(linear, ADAM, client_epochs=1, density_epochs=1, distil_epochs=2), POOL),
}
QUICK = 2
IN_BRIEF = ("FML", "DLAD")
FULL = 12  # of each run: 144


def run(name: str, folder: Path, **options):
    torch.manual_seed(7)
    data = toy_data(60, **RUNS[name].data)
    options = {"num_rounds": 2, "personal_memory": 0.0, **RUNS[name].options, **options}
    return fitted(RUNS[name].build(), data, default_root_dir=str(folder), **options)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Moment:
    """Kills the process at the n-th of the steps that are counted, before it or in the middle of what it writes."""

    def __init__(self, number: int) -> None:
        self.left = number

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


def while_writing(moment: Moment) -> None:
    """Steps are the writes into a checkpoint and what moves it into its place."""

    class Torn(torch_file._Hashed):
        def write(self, data):
            if moment():
                super().write(bytes(data)[: memoryview(data).nbytes // 2])
                self.flush()
                die()
            return super().write(data)

    def watched(step):
        def call(*args, **kwargs):
            if moment():
                die()
            return step(*args, **kwargs)

        return call

    torch_file._Hashed = Torn
    for name in ("replace", "link"):
        setattr(checkpoint.os, name, watched(getattr(os, name)))


def while_training(moment: Moment) -> None:
    """Steps are batches: before each, a visit asks whether it is to end."""

    def asked() -> bool:
        if moment():
            die()
        return False

    Fit._should_stop_training = lambda self: asked


def steps_of(watch, name: str, folder: Path) -> int:
    """How many such steps a whole run has; told by a child, which is not to change this process."""
    told = folder.with_suffix(".count")

    def count() -> None:
        moment = Moment(0)
        watch(moment)
        run(name, folder)
        told.write_text(str(-moment.left))

    assert in_a_child(count) == 0
    return int(told.read_text())


def killed(watch, number: int, name: str, folder: Path, **options) -> bool:
    def work() -> None:
        watch(Moment(number))
        run(name, folder, **options)

    return in_a_child(work) == -signal.SIGKILL


@pytest.mark.parametrize("kills", [QUICK, pytest.param(FULL, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_goes_on_to_the_same_bits(name, kills, tmp_path, monkeypatch):
    if kills == QUICK and name not in IN_BRIEF:
        pytest.skip("the full form has it")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    whole = run(name, tmp_path / "whole")
    metrics = Path(whole.log_dir, "metrics.csv").read_bytes()
    whole_states = states(whole)
    draw = random.Random(name)
    watches = (while_writing, while_training)
    num_steps = {watch: steps_of(watch, name, tmp_path / watch.__name__) for watch in watches}
    assert min(num_steps.values()) > 10
    died, differ, in_writes = 0, 0, 0
    while died < kills:
        watch = while_training if 2 * in_writes > died else while_writing
        folder = tmp_path / f"killed_{died}"
        assert killed(watch, draw.randint(1, num_steps[watch]), name, folder)
        died += 1
        in_writes += watch is while_writing
        if died < kills and draw.random() < 0.3:  # again, soon after it has gone on
            again = killed(while_writing, draw.randint(1, 20), name, folder, ckpt_path="auto")
            died += again
            in_writes += again
        resumed = run(name, folder, ckpt_path="auto")
        is_same = same(states(resumed), whole_states)
        differ += not (is_same and Path(resumed.log_dir, "metrics.csv").read_bytes() == metrics)
        assert not list(folder.rglob(".*.tmp"))
    print(f"\n{name}: {died} kills, {in_writes} of them in writes of checkpoints, {differ} differ")
    assert differ == 0


def test_a_run_that_went_on_otherwise_would_be_told_apart(tmp_path):
    """The sibling: other bits are other bits."""
    one, other = run("FedAvg", tmp_path / "one"), run("FedAvg", tmp_path / "other", seed=1)
    assert not same(states(one), states(other))


def test_what_a_killed_run_left_in_the_temporary_folder_is_swept_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert killed(while_training, 13, "FML", tmp_path / "killed")  # two batches of each of three clients in a round
    assert len(list(tmp_path.glob(f"{PREFIX}*"))) == 1
    living = run("FML", tmp_path / "living")  # sweeps, and holds a folder of its own
    held = living.state.memories.store._folder
    assert list(tmp_path.glob(f"{PREFIX}*")) == [held]
    run("FML", tmp_path / "next", num_rounds=1)
    assert held.is_dir()
