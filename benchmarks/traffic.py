"""Bytes between processes in a round, and memory with many personal networks: `python -m benchmarks.traffic`.

The kernel counts what goes through a process's sockets (TCP_INFO), so that nothing is left out: the sums of a round,
what is asked for, signs of life. FML with perceptrons; one is shared, one is personal, and each is as large.

    python -m benchmarks.traffic            both tables
    python -m benchmarks.traffic bytes      or memory
"""

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.workloads import quiet_federation

BYTES_ACKED = 120  # where in TCP_INFO the kernel says what has arrived, and what has come
PIXELS = 8


@dataclass(frozen=True)
class Point:
    """An experiment: clients of a round on so many processes, how wide the perceptrons are, and how many rounds."""

    processes: int
    clients: int
    cohort: int
    hidden: tuple[int, ...] = (200,)
    rounds: int = 4


BYTES = [Point(processes, 2 * cohort, cohort) for cohort in (8, 32, 128) for processes in (1, 2, 4, 8)]
MEMORY = [Point(processes, 200, 200, (2000,), 2) for processes in (1, 2, 4)]


def traffic() -> np.ndarray:
    """Bytes that this process has sent and received so far, by all its connections."""
    total = np.zeros(2, np.int64)
    for entry in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{entry}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry))) as link:
                told = link.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        except OSError:  # gone in the meantime, or of another kind
            continue
        total += struct.unpack_from("QQ", told, BYTES_ACKED)
    return total


def one(point: Point, told: Path) -> None:
    """A fit on this process; what it has sent and received in its rounds is left in a file of its own."""
    import torch

    from fedlit import FederatedData
    from fedlit.callbacks import FederationCallback
    from fedlit.methods import FML
    from fedlit.networks import MLP
    from fedlit.partition import IID

    rounds: list[np.ndarray] = []

    class Counter(FederationCallback):
        def on_round_start(self, federation, module, round, clients) -> None:
            rounds.append(traffic())

    def network() -> torch.nn.Module:
        return MLP(in_channels=1, image_size=PIXELS, hidden=tuple(point.hidden))

    draw = np.random.default_rng(0)
    number = 7 * point.clients
    arrays = {f"{part}_images": draw.integers(0, 256, (number, PIXELS, PIXELS), np.uint8) for part in ("train", "test")}
    arrays |= {f"{part}_labels": np.arange(number, dtype=np.uint8) % 10 for part in ("train", "test")}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(f"{folder}/noise.npz", **arrays)
        data = FederatedData(
            f"{folder}/noise.npz", num_clients=point.clients, partition=IID(7), val_size=1, batch_size=6
        )
        options = {"fraction_fit": point.cohort / point.clients, "devices": point.processes, "callbacks": Counter()}
        federation = quiet_federation(point.rounds, os.environ.setdefault("TRAFFIC_FOLDER", folder), **options)
        federation.fit(FML(network, network, partial(torch.optim.SGD, lr=0.05, momentum=0.9)), data)
    size = sum(p.numel() * p.element_size() for p in network().parameters())
    sent, received = np.median(np.diff(rounds, axis=0), axis=0) / size
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = {"sent": float(sent), "received": float(received), "peak": peak}
    (told / f"{federation.fabric.global_rank}.json").write_text(json.dumps(found))


def measured(point: Point) -> list[dict[str, float]]:
    """Of every process: what a round sends and receives, in sizes of the shared network, and its peak megabytes."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder, "told")
        told.mkdir()
        command = [sys.executable, "-m", "benchmarks.traffic", json.dumps(asdict(point)), str(told)]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TRAFFIC_FOLDER": folder}
        subprocess.run(command, check=True, capture_output=True, env=environment)
        return [json.loads(path.read_text()) for path in sorted(told.iterdir())]


def tell_bytes() -> None:
    print("clients  processes  sent: most  received: most  received: all   (sizes of the shared network, a round)")
    for point in BYTES:
        found = measured(point)
        most = {key: max(process[key] for process in found) for key in found[0]}
        total = sum(process["received"] for process in found)
        told = f"{most['sent']:10.1f} {most['received']:15.1f} {total:14.1f}"
        print(f"{point.cohort:7} {point.processes:10} {told}", flush=True)


def tell_memory() -> None:
    print("processes  peak MB of each, with 200 personal networks")
    for point in MEMORY:
        peaks = ", ".join(f"{process['peak']:.0f}" for process in measured(point))
        print(f"{point.processes:9}  {peaks}", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 3:
        one(Point(**json.loads(sys.argv[1])), Path(sys.argv[2]))
    else:
        which = sys.argv[1:] or ["bytes", "memory"]
        if "bytes" in which:
            tell_bytes()
        if "memory" in which:
            tell_memory()
