"""Several processes, and signals: the command line as a person or a scheduler runs it."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import toys
from toys import equal

from fedlit.records import checkpoint

NETWORK = """
from torch import nn


class Net(nn.Sequential):
    def __init__(self):
        convolution = [nn.Conv2d(1, 4, 5, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*convolution, nn.Flatten(), nn.Dropout(0.3), nn.Linear(144, 10))
"""
RECIPE = """
seed_everything: 3
data:
  class_path: fedlit.data.FederatedData
  init_args:
    num_clients: 5
    partition: {class_path: fedlit.partition.Dirichlet, init_args: {alpha: 0.3, min_samples: 40}}
model:
  class_path: fedlit.methods.FML
  init_args:
    personal: {class_path: nets.Net}
    client_networks: {1: {class_path: fedlit.networks.MLP}}
    meme: {class_path: nets.Net}
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05, momentum: 0.9}}
trainer: {num_rounds: 2, fraction_fit: 0.6, accelerator: cpu}
"""


def start(folder: Path, *args: str) -> subprocess.Popen:
    folder.mkdir(exist_ok=True)
    (folder / "nets.py").write_text(NETWORK)
    (folder / "recipe.yaml").write_text(RECIPE)
    command = [sys.executable, "-m", "fedlit", "fit", "--config", "recipe.yaml", *args]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(folder: Path, *args: str) -> dict:
    process = start(folder, *args)
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    return checkpoint.load(folder / "lightning_logs/version_0/checkpoints/last.ckpt")


def same(a: dict, b: dict) -> bool:
    return equal(a["global_state"], b["global_state"]) and toys.same(a["personal_states"], b["personal_states"])


def second_of(process: subprocess.Popen) -> int:
    """The process id of rank 1, which rank 0 has started."""
    command = ["ps", "-o", "pid=", "--ppid", str(process.pid)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()[0])


def after_round(process: subprocess.Popen, number: int) -> None:
    for line in process.stdout:
        if line.startswith(f"round {number}/"):
            return
    raise AssertionError(f"the run ended before round {number}")


METRICS = "lightning_logs/version_0/metrics.csv"
SIX = ("--trainer.num_rounds", "6", "--trainer.report", "false")
TWO = (*SIX, "--trainer.devices", "2")


@pytest.mark.slow
@pytest.mark.parametrize("who", [0, 1])
def test_a_killed_process_ends_the_others_in_a_line_and_the_run_goes_on_to_the_same_bits(who, tmp_path):
    whole = finished(tmp_path / "whole", *SIX)
    process = start(tmp_path / "cut", *TWO)
    after_round(process, 2)
    os.kill([process.pid, second_of(process)][who], signal.SIGKILL)
    rest, _ = process.communicate(timeout=120)  # the pipe is closed when both have ended
    [line] = [line for line in rest.splitlines() if not line.startswith("round ")]
    assert f"fedlit: error: rank {who} of 2 has died" in line
    assert process.returncode == [-signal.SIGKILL, 3][who]
    checkpoints = tmp_path / "cut/lightning_logs/version_0/checkpoints"
    kept = checkpoints.rename(tmp_path / "kept")
    for devices in ("1", "2"):
        shutil.copytree(kept, checkpoints, dirs_exist_ok=True)
        resumed = finished(tmp_path / "cut", *SIX, "--trainer.devices", devices, "--ckpt_path", "last")
        assert same(resumed, whole)
        assert (tmp_path / "cut" / METRICS).read_text() == (tmp_path / "whole" / METRICS).read_text()


@pytest.mark.slow
def test_what_every_process_refuses_is_said_once(tmp_path):
    process = start(tmp_path / "run", *TWO, "--data.num_clients", "100000")
    rest, _ = process.communicate(timeout=120)
    assert process.returncode == 2, rest
    assert rest.count("fedlit: error:") == 1
    assert len(rest.splitlines()) == 1, rest
