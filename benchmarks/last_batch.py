"""What a step on a last batch of one sample costs: clients' own accuracy with and without it, as a Markdown table.

python -m benchmarks.last_batch

Ten clients hold the embedded Fashion-MNIST sample under Dirichlet(0.1). One of them has 449 = 14 x 32 + 1 training
samples, so each of its epochs ends with a batch of one sample if `data.drop_last` is false. Which sample that is
depends on the seed and the round; one of a class that the client rarely sees can undo its training. Therefore the table
has the last round, which a paper would report, and the lowest accuracy of that client in any round from the third on.
"""

import argparse
import csv
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import mean, stdev
from typing import Literal

import torch

from fedlit import APFL, Ditto, FederatedData, FederatedModule, Federation, FedPer, FedRep
from fedlit.networks import MLP
from fedlit.partition import Dirichlet

SGD = partial(torch.optim.SGD, lr=0.05)
METHODS: dict[str, Callable[[], FederatedModule]] = {
    "Ditto": lambda: Ditto(MLP, SGD),
    "APFL": lambda: APFL(MLP, SGD),
    "FedPer": lambda: FedPer(MLP, SGD),
    "FedRep": lambda: FedRep(MLP, SGD, head_epochs=5),
}
FIRST = 3  # round from which on every client's accuracy has settled
AFFECTED = 7  # the client with 449 samples

Accuracies = dict[int, dict[int, float]]  # by round and client


def own_accuracies(method: str, drop_last: bool | Literal["single"], rounds: int, seed: int) -> Accuracies:
    """Of each client's own model on its own validation samples, in percent."""
    partition = Dirichlet(alpha=0.1)
    data = FederatedData(partition=partition, partition_seed=1, val_size=0.2, drop_last=drop_last)
    with tempfile.TemporaryDirectory() as folder:
        federation = Federation(
            num_rounds=rounds,
            local_epochs=1 if method == "FedRep" else 2,  # FedRep has options of its own
            default_root_dir=folder,
            logger=False,
            report=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            accelerator="cpu",
            seed=seed,
        )
        result = federation.fit(METHODS[method], data)
        assert result.folder is not None
        assert data.client(AFFECTED).num_samples == 449
        return _read(result.folder / "metrics.csv")


def _read(path: Path) -> Accuracies:
    found: Accuracies = {}
    with path.open() as file:
        for row in csv.DictReader(file):
            if (row["model"], row["data"], row["metric"]) == ("personal", "own", "acc"):
                found.setdefault(int(row["round"]), {})[int(row["client"])] = 100 * float(row["value"])
    return found


def summary(runs: list[Accuracies]) -> list[str]:
    """The cells of a row, over seeds."""
    last = [list(run[max(run)].values()) for run in runs]
    means = [mean(values) for values in last]
    worst = [min(values) for values in last]
    affected = [run[max(run)][AFFECTED] for run in runs]
    lowest = [min(clients[AFFECTED] for number, clients in run.items() if number >= FIRST) for run in runs]
    spread = stdev(means) if len(means) > 1 else 0.0
    listed = [" ".join(f"{value:.1f}" for value in values) for values in (means, worst, affected, lowest)]
    return [f"{mean(means):.1f} ± {spread:.1f}", *listed]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.time()
    columns = ["mean over clients", "... by seed", "worst client", "client of 449 samples", "its lowest round"]
    print("| method | drop_last |", " | ".join(columns), "|")
    print("|---|---|", "---|" * len(columns), sep="")
    for method in args.methods:
        for drop_last in (False, "single"):
            runs = [own_accuracies(method, drop_last, args.rounds, seed) for seed in args.seeds]
            print(f"| {method} | {str(drop_last).lower()} |", " | ".join(summary(runs)), "|", flush=True)
    print(f"{time.time() - start:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
