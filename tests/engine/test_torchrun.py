"""Processes that torchrun starts: two hosts on loopback by the commands of the docs, and a restart after a kill."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from forked import free_port
from test_processes import finished, same

from fedlit.records import checkpoint

pytestmark = pytest.mark.slow
RUN = "lightning_logs/version_0"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


def commands() -> list[str]:
    text = (Path(__file__).parents[2] / "docs/cluster.md").read_text()
    return [line for line in text.splitlines() if line.startswith("torchrun ")]


def started(folder: Path, words: list[str]) -> subprocess.Popen:
    command = [*TORCHRUN, *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def on_two_hosts(folder: Path) -> list[subprocess.Popen]:
    """The commands of the docs, on loopback."""
    port = str(free_port())
    assert len(commands()) == 2
    hosts = []
    for line in commands():
        words = line.replace("host1", "127.0.0.1").replace("29400", port).split()
        hosts.append(started(folder, words[1:]))
    return hosts


def test_two_hosts_by_torchrun_as_in_the_docs_end_in_the_bits_of_one_process(tmp_path):
    folder = tmp_path / "run"
    one = finished(folder)
    metrics = (folder / RUN / "metrics.csv").read_bytes()
    shutil.rmtree(folder / "lightning_logs")
    hosts = on_two_hosts(folder)
    outputs = [host.communicate(timeout=500)[0] for host in hosts]
    assert [host.returncode for host in hosts] == [0, 0], outputs
    assert same(one, checkpoint.load(folder / RUN / "checkpoints/last.ckpt"))
    assert (folder / RUN / "metrics.csv").read_bytes() == metrics


def is_at(folder: Path, round: int) -> bool:
    events = folder / RUN / "events.jsonl"
    return events.exists() and f'"event": "round", "round": {round}' in events.read_text()


def await_round(folder: Path, round: int, process: subprocess.Popen) -> None:
    deadline = time.monotonic() + 240
    while not is_at(folder, round):
        assert time.monotonic() < deadline
        assert process.poll() is None, process.stdout.read()
        time.sleep(0.05)


def workers(process: subprocess.Popen) -> list[int]:
    """Process ids of what torchrun has started, in the order of ranks."""
    listed = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(process.pid)], capture_output=True, text=True)
    return sorted(int(line.split()[0]) for line in listed.stdout.splitlines() if "fedlit" in line)


STATIC = ["--master-addr", "127.0.0.1", "--master-port", "PORT"]
ELASTIC = ["--rdzv-backend", "c10d", "--rdzv-endpoint", "127.0.0.1:PORT", "--rdzv-id", "run"]


@pytest.mark.parametrize(("rank", "meeting"), [(0, STATIC), (1, STATIC), (1, ELASTIC)])
def test_a_killed_process_is_restarted_by_torchrun_and_the_run_goes_on_to_the_same_bits(rank, meeting, tmp_path):
    options = ["--trainer.num_rounds", "6", "--trainer.report", "false"]
    whole = finished(tmp_path / "run", *options)
    folder = tmp_path / "run"
    metrics = (folder / RUN / "metrics.csv").read_bytes()
    shutil.rmtree(folder / "lightning_logs")
    port = str(free_port())
    alone = ["--nproc-per-node", "2", *[word.replace("PORT", port) for word in meeting]]
    fit = ["-m", "fedlit", "fit", "--config", "recipe.yaml", *options, "--trainer.devices", "2", "--ckpt_path", "auto"]
    process = started(folder, [*alone, "--max-restarts", "1", *fit])
    await_round(folder, 2, process)
    killed = workers(process)
    os.kill(killed[rank], signal.SIGKILL)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    assert len(killed) == 2
    events = (folder / RUN / "events.jsonl").read_text()
    assert [line.count('"round": 0') for line in events.splitlines() if '"event": "fit"' in line] == [1, 0], events
    assert same(whole, checkpoint.load(folder / RUN / "checkpoints/last.ckpt"))
    assert (folder / RUN / "metrics.csv").read_bytes() == metrics
