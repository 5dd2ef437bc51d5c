"""Rounds to milestones on permuted MNIST for FedAvg and the three fusions, under each reading of "test accuracy".

Ten clients x 300 images (and 300 of the test set), each with an order of pixels of its own, brought to 14 x 14 so that
a round with the paper's CNN takes some ten seconds on one core; E = 5, B = 64, no augmentation, lr 0.01 (a round has a
twentieth of the paper's steps) falling by 0.99 a round.

    python -m benchmarks.fedfusion_mnist DATA_FOLDER OUTPUT_FOLDER [ROUNDS [SEED ...]]
"""

import json
import sys
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch.optim.lr_scheduler import ExponentialLR

from fedlit import FedAvg, FederatedData, Federation
from fedlit.callbacks import FederationCallback
from fedlit.engine.evaluation import Scorer
from fedlit.methods import FedFusion
from fedlit.networks import McMahanCNN
from fedlit.partition import PermutedPixels
from fedlit.records.rows import Row, summary

MILESTONES = (0.3, 0.4, 0.5, 0.55, 0.6, 0.65, 0.7)
READINGS = {
    "after training, on own": "acc/trained_on_own",
    "global, previous E_g": "acc/global_on_own",
    "global, E_g itself": "acc/self_on_own",
}
EXTRACTOR, REFERENCE = "network.extractor.", "network.reference."


class Readings(FederationCallback):
    """Every round's accuracies; also those of the global model with its own extractor as the reference."""

    def __init__(self) -> None:
        self.rounds: list[dict[str, float]] = []

    def on_round_end(self, federation: Federation, module: FedAvg | FedFusion, round: int, rows: list[Row]) -> None:
        means = {key: parts["mean"] for key, parts in summary(rows).items() if key.startswith("acc/")}
        run, kept = federation.state, federation.state.global_state
        own = {n.replace(EXTRACTOR, REFERENCE): t for n, t in kept.items() if n.startswith(EXTRACTOR)}
        run.global_state = {**kept, **{name: t for name, t in own.items() if name in kept}}
        again = summary(Scorer(run, module.configure_stages()[0]).evaluate(round))
        run.global_state = kept
        run.load_global()
        self.rounds.append(means | {"acc/self_on_own": again["acc/global_on_own"]["mean"]})


def reduced(name: str, values: np.ndarray) -> np.ndarray:
    """The first 3,000 samples; images as means of 2 x 2 pixels."""
    values = values[:3000]
    return values.reshape(-1, 14, 2, 14, 2).mean((2, 4)).round().astype(np.uint8) if "images" in name else values


def accuracies(operator: str, seed: int, rounds: int, dataset: Path, folder: Path) -> list[dict[str, float]]:
    data = FederatedData(
        str(dataset), partition=PermutedPixels(), partition_seed=seed, validation="test", batch_size=64
    )
    torch.manual_seed(seed)
    network = partial(McMahanCNN, image_size=14, dropout=0.2, init="xavier")
    optimizer = partial(torch.optim.SGD, lr=0.01, momentum=0.9, weight_decay=5e-4)
    method = FedAvg(network, optimizer) if operator == "fedavg" else FedFusion(network, optimizer, operator)
    readings, schedule = Readings(), partial(ExponentialLR, gamma=0.99)
    quiet = {"save_every_n_rounds": 50, "logger": False, "default_root_dir": folder}
    Federation(rounds, local_epochs=5, lr_schedule=schedule, callbacks=readings, seed=seed, **quiet).fit(method, data)
    return readings.rounds


def main(data: str, output: str, rounds: str = "20", *seeds: str) -> None:
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    full, dataset = np.load(Path(data) / "mnist.npz"), folder / "mnist14.npz"
    np.savez(dataset, **{name: reduced(name, values) for name, values in full.items()})
    for seed in map(int, seeds or ("1", "2")):
        for operator in ("fedavg", "single", "multi", "conv"):
            found = accuracies(operator, seed, int(rounds), dataset, folder / f"{operator}_{seed}")
            (folder / f"{operator}_{seed}.json").write_text(json.dumps(found))
            for reading, key in READINGS.items():
                reached = [next((i for i, r in enumerate(found, 1) if r[key] >= goal), "-") for goal in MILESTONES]
                milestones = dict(zip(MILESTONES, reached, strict=True))
                print(operator, seed, reading, milestones, f"last {found[-1][key]:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
