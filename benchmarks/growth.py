"""Time and memory of a round as clients, cohort, network and personal state grow: `python -m benchmarks.growth`.

A process for each point, on noise in the shape of MNIST, 6 samples a client and batches of 6, so that what is not
training shows. Writes docs/growth.json and docs/growth.png.
"""

import json
import resource
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.workloads import quiet_federation

ROUNDS = 12
DOCS = Path(__file__).parents[1] / "docs"


@dataclass(frozen=True)
class Point:
    """An experiment: FedAvg, or FML with `budget` gigabytes for its personal networks."""

    clients: int = 100
    cohort: int = 10
    network: str = "MLP"
    method: str = "FedAvg"
    budget: float = 2.0


SERIES = {
    "clients": [Point(clients=n) for n in (10, 100, 1000, 10_000)],
    "clients a round": [Point(clients=1000, cohort=n) for n in (10, 100, 1000)],
    "network": [Point(network=name) for name in ("LeNet5", "MLP", "McMahanCNN", "ResNet18")],
    "personal networks": [Point(n, min(n, 100), "MLP", "FML", 0.1) for n in (10, 100, 1000)],
}


def memory() -> dict[str, float]:
    """Peak megabytes of the process, and what of its memory now is not a mapped file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    own = next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
    return {"peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "own": own / 1024}


def one(point: Point) -> dict[str, float]:
    """Milliseconds a round and a visit, and memory."""
    import torch

    from fedlit import FedAvg, FederatedData, networks
    from fedlit.methods import FML
    from fedlit.partition import IID

    def network() -> torch.nn.Module:
        return getattr(networks, point.network)(in_channels=1, image_size=28)

    sgd = partial(torch.optim.SGD, lr=0.05)
    method = FML(network, network, sgd) if point.method == "FML" else FedAvg(network, sgd)
    with tempfile.TemporaryDirectory() as folder:
        draw = np.random.default_rng(0)
        images = {"train": 7 * point.clients, "test": 100}
        arrays = {f"{part}_images": draw.integers(0, 256, (n, 28, 28), np.uint8) for part, n in images.items()}
        arrays |= {f"{part}_labels": np.arange(n, dtype=np.uint8) % 10 for part, n in images.items()}
        np.savez(f"{folder}/noise.npz", **arrays)
        data = FederatedData(
            f"{folder}/noise.npz", num_clients=point.clients, partition=IID(7), val_size=1, batch_size=6
        )
        options = {"fraction_fit": point.cohort / point.clients, "personal_memory": point.budget}
        federation = quiet_federation(ROUNDS, folder, **options)
        federation.fit(method, data)
        events = map(json.loads, (Path(federation.log_dir) / "events.jsonl").read_text().splitlines())
        seconds = sorted(
            event["seconds"] for event in events if event["event"] == "round" and 1 < event["round"] < ROUNDS
        )
        parameters = sum(p.numel() for p in network().parameters())
        each = 1000 * seconds[len(seconds) // 2]
        return {**asdict(point), "parameters": parameters, "round": each, "visit": each / point.cohort, **memory()}


def draw(results: dict[str, list[dict]]) -> None:
    import matplotlib.pyplot as plt

    axis = {"clients": "clients", "clients a round": "cohort", "network": "parameters", "personal networks": "clients"}
    figure, panels = plt.subplots(2, 4, figsize=(12, 5), sharex="col", sharey="row", layout="constrained")
    for (title, points), (time, space) in zip(results.items(), panels.T, strict=True):
        x = [point[axis[title]] for point in points]
        time.plot(x, [point["visit"] for point in points], "o-", label="a visit")
        time.set(title=title, xscale="log", yscale="log", ylim=(1, 2000))
        space.plot(x, [point["peak"] for point in points], "o-", label="peak")
        space.plot(x, [point["own"] for point in points], "o--", label="at the end, without mapped files")
        space.set(xscale="log", xlabel=axis[title])
    figure.legend(*panels[1, 0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    panels[0, 0].set_ylabel("milliseconds a visit")
    panels[1, 0].set(
        ylabel="megabytes", ylim=(0, 1.1 * max(point["peak"] for points in results.values() for point in points))
    )
    figure.savefig(DOCS / "growth.png", dpi=90)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        print(json.dumps(one(Point(**json.loads(sys.argv[1])))))
    else:
        results: dict[str, list[dict]] = {}
        for title, points in SERIES.items():
            for point in points:
                command = [sys.executable, "-m", "benchmarks.growth", json.dumps(asdict(point))]
                output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                results.setdefault(title, []).append(found := json.loads(output.splitlines()[-1]))
                shown = ", ".join(
                    f"{k} {v:.0f}" if isinstance(v, float) and v > 9 else f"{k} {v}" for k, v in found.items()
                )
                print(f"{title}: {shown}", flush=True)
        (DOCS / "growth.json").write_text(json.dumps(results, indent=1) + "\n")
        draw(results)
