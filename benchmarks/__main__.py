"""fedlit against hand-written PyTorch loops of the same work: `make bench`, or `python -m benchmarks W1 W2 --turns 9`.

Each side is a process of its own on the same core; they work in turns, so that a busy machine slows both. A
ratio is of CPU seconds of neighbouring turns: training, aggregation and records, without evaluation and checkpoints.
The tight loop, however, looks at 1,000 test images after every round, and the side `records` does all by default.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.workloads import MODES, WORKLOADS, data_folder

LOOPS = ("tight", "bare")  # the yardsticks
Figures = dict[str, Any]  # of one side
# On W1 and W2, where what they need is installed.
PEERS = {"pfl": ("benchmarks.peer_pfl", ["pfl"]), "flwr": ("benchmarks.peer_flwr", ["flwr", "ray"])}
START = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import fedlit": [sys.executable, "-c", "import fedlit"],
    "fedlit --help": [sys.executable, "-m", "fedlit", "--help"],
}
W2_RECIPE = """\
seed_everything: 1
trainer: {num_rounds: 20, local_epochs: 2, fraction_fit: 0.1, eval_every_n_rounds: 20, save_every_n_rounds: 20}
model:
  class_path: fedlit.FedAvg
  init_args:
    network: fedlit.networks.MLP
    optimizer: {class_path: torch.optim.SGD, init_args: {lr: 0.05}}
data:
  class_path: fedlit.FederatedData
  init_args:
    num_clients: 100
    validation: test
    batch_size: 10
    partition: {class_path: fedlit.partition.IID, init_args: {samples_per_client: 60}}
"""


class Worker:
    """A process that works a turn when it is told to."""

    def __init__(self, module: str, *args: str | None) -> None:
        command = [sys.executable, "-m", module, *(arg for arg in args if arg)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.answer()

    def answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{' '.join(self.process.args)} ended with {self.process.wait()}")
        return json.loads(line)

    def turn(self) -> dict[str, float]:
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.answer()

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def sides_of(name: str) -> list[str]:
    """What is compared on a workload, unless the user says: loops, modes of fedlit, peers that are installed."""
    sides = [*LOOPS, *WORKLOADS[name].modes]
    if name in ("W1", "W2"):
        sides += [peer for peer, (_, needs) in PEERS.items() if all(map(find_spec, needs))]
    return sides


def start_side(name: str, side: str, root: str | None) -> Worker:
    if side in PEERS:
        return Worker(PEERS[side][0], name, root)
    return Worker("benchmarks.worker", name, side, root)


def compare(name: str, sides: list[str], turns: int, root: str | None) -> dict[str, Figures]:
    """Figures of each side of a workload."""
    workers = {side: start_side(name, side, root) for side in sides}
    times: dict[str, list[dict[str, float]]] = {side: [] for side in workers}
    for _ in range(turns):
        for side, worker in workers.items():
            times[side].append(worker.turn())
    for worker in workers.values():
        worker.end()
    each = 1000 / WORKLOADS[name].rounds_a_turn
    figures = {}
    for side, rounds in times.items():
        figures[side] = {
            "ratios": {loop: middle(rounds, times[loop]) for loop in LOOPS if loop in times},
            "milliseconds": statistics.median(r["cpu"] for r in rounds) * each,
            "wall": statistics.median(r["wall"] for r in rounds) * each,
            "peak": rounds[-1]["peak"],
        }
    return figures


def middle(rounds: list[dict[str, float]], loop: list[dict[str, float]]) -> dict[str, float]:
    """The middle ratio of neighbouring turns, and the middle half."""
    ratios = sorted(r["cpu"] / b["cpu"] for r, b in zip(rounds, loop, strict=True))
    quarter = len(ratios) // 4
    return {"ratio": statistics.median(ratios), "low": ratios[quarter], "high": ratios[-1 - quarter]}


def seconds(command: list[str], **options) -> float:
    start = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True, **options)
    return time.perf_counter() - start


def start_up(repeats: int = 3) -> dict[str, float]:
    """Wall seconds from a command to its end, the middle of a few, and of W2 to its first batch."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder) / "w2.yaml"
        recipe.write_text(W2_RECIPE)
        fit = [sys.executable, "-m", "fedlit", "fit", "--config", str(recipe), "--trainer.default_root_dir", folder]
        first = [*fit, "--trainer.callbacks", "benchmarks.first_batch.FirstBatch"]
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        commands = START | {
            "fedlit fit, to the first batch": first,
            "fedlit fit, 20 rounds of W2": fit,
            "bare loop, 20 rounds of W2": [sys.executable, "-m", "benchmarks.whole_w2"],
        }
        for name, command in commands.items():
            figures[name] = statistics.median(seconds(command, env=environment) for _ in range(repeats))
    return figures


def table(results: dict[str, dict[str, Figures]]) -> str:
    lines = []
    for name, figures in results.items():
        lines.append(f"{name}: {WORKLOADS[name].title}")
        loops = [loop for loop in LOOPS if loop in figures]
        heads = "".join(f"{f'against {loop}':>22}" for loop in loops)
        lines.append(f"  {'side':12}{heads} {'CPU ms':>9} {'peak MB':>8}")
        for side, f in figures.items():
            ratios = "".join(f"{spread(f['ratios'][loop]):>22}" for loop in loops)
            lines.append(f"  {side:12}{ratios} {f['milliseconds']:9.1f} {f['peak']:8.0f}")
    return "\n".join(lines)


def spread(f: dict[str, float]) -> str:
    return f"{f['ratio']:.2f} ({f['low']:.2f}-{f['high']:.2f})"


def draw(results: dict[str, dict[str, Figures]], path: str) -> None:
    """Bars: how long each side takes, the tight loop being 1; lines are the middle half."""
    import matplotlib.pyplot as plt

    shown = list(dict.fromkeys(side for figures in results.values() for side in figures if side != "tight"))
    figure, axes = plt.subplots(figsize=(8, 3), layout="constrained")
    for i, side in enumerate(shown):
        found = [(x, results[name][side]["ratios"]["tight"]) for x, name in enumerate(results) if side in results[name]]
        ranges = [[f["ratio"] - f["low"] for _, f in found], [f["high"] - f["ratio"] for _, f in found]]
        where = [x + (i - (len(shown) - 1) / 2) * 0.8 / len(shown) for x, _ in found]
        axes.bar(where, [f["ratio"] for _, f in found], 0.75 / len(shown), yerr=ranges, label=side)
    axes.axhline(1, color="black", linewidth=1)
    axes.set(xticks=range(len(results)), xticklabels=results, ylabel="time / tight loop")
    axes.legend(fontsize="small")
    figure.savefig(path, dpi=90)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("workloads", nargs="*", metavar="W", help=f"of {', '.join(WORKLOADS)}; all by default")
    parser.add_argument("--sides", nargs="+", choices=[*LOOPS, *MODES, *PEERS], metavar="SIDE", help="of %(choices)s")
    parser.add_argument("--turns", type=int, default=7, help="turns of each side")
    parser.add_argument("--core", type=int, default=0, help="the core that all sides share")
    parser.add_argument("--output", default="benchmarks/results.json", help="where the figures go")
    parser.add_argument("--picture", help="where to draw them")
    options = parser.parse_args()
    if unknown := [name for name in options.workloads if name not in WORKLOADS]:
        parser.error(f"there is no workload {unknown[0]}; choose of {', '.join(WORKLOADS)}")
    os.sched_setaffinity(0, {options.core})
    os.environ["OMP_NUM_THREADS"] = "1"
    root = data_folder(os.environ.get("FEDLIT_DATA"))
    results = {}
    for name in options.workloads or WORKLOADS:
        print(f"{name}: {WORKLOADS[name].title} ...", file=sys.stderr, flush=True)
        results[name] = compare(name, options.sides or sides_of(name), options.turns, root)
    start = {} if options.workloads or options.sides else start_up()
    print(table(results))
    for name, value in start.items():
        print(f"{name:56} {value:13.2f} s")
    content = {"data": "mnist" if root else "fashion_sample", "rounds": results, "start": start}
    Path(options.output).write_text(json.dumps(content, indent=1) + "\n")
    print(f"\nfigures in {options.output}")
    if options.picture:
        draw(results, options.picture)


if __name__ == "__main__":
    main()
