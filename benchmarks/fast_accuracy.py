"""Accuracy of fast mode beside exact mode, five seeds: `python -m benchmarks.fast_accuracy`.

The workloads of `make bench`; those with convolutions on 200 samples a client. On the embedded sample, pooled test set.
"""

import statistics
import tempfile
from dataclasses import replace

import torch

from benchmarks.workloads import WORKLOADS, quiet_federation

WORK = {
    "W1": (replace(WORKLOADS["W1"], samples=200), 5),
    "W2": (WORKLOADS["W2"], 40),
    "W3": (replace(WORKLOADS["W3"], samples=200), 5),
}


def accuracy(name: str, fast: bool, seed: int) -> float:
    work, rounds = WORK[name]
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        federation = quiet_federation(rounds, folder, seed=seed, fast=fast, **work.trainer_options)
        federation.fit(work.federated_module(), work.federated_data())
        return federation.state.scores.last["acc/global_on_pooled"]["mean"]


if __name__ == "__main__":
    for name, (_, rounds) in WORK.items():
        pairs = [(accuracy(name, False, seed), accuracy(name, True, seed)) for seed in range(1, 6)]
        differences = [fast - exact for exact, fast in pairs]
        print(
            f"{name}, {rounds} rounds: exact",
            *(f"{exact:.4f}" for exact, _ in pairs),
            "fast",
            *(f"{fast:.4f}" for _, fast in pairs),
            f"mean difference {statistics.mean(differences):+.4f}, sd {statistics.stdev(differences):.4f}",
            flush=True,
        )
