"""What attackers do to each rule of `trainer.aggregator`: accuracy of the global model, as a Markdown table.

python -m benchmarks.attacks --rounds 5

Attackers are the first clients of ten that hold equal parts of the embedded Fashion-MNIST sample. They know what the
honest ones send, and change what reaches the server after all checks of uploads, so that the rule alone is measured:

    sign_flip   w - 100 (w_k - w): the own update, turned round, a hundred times
    noise       w + 10 N(0, I)
    label_flip  an honest training on labels 9 - y
    little      mu - z sigma of the honest uploads, coordinate by coordinate. Baruch et al., 2019.
                https://arxiv.org/abs/1902.06156 with the z of its section 3.3
"""

import argparse
import sys
import time
from collections.abc import Iterable, Mapping
from functools import partial
from statistics import NormalDist

import torch
from torch import Tensor

from fedlit import FedAvg, FederatedData, Federation
from fedlit.aggregation import (
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormClipping,
    Rule,
    State,
    TrimmedMean,
    Upload,
)
from fedlit.networks import MLP
from fedlit.partition import IID, Dirichlet

SGD = partial(torch.optim.SGD, lr=0.1)
ATTACKS = ("sign_flip", "noise", "label_flip", "little")
RULES: dict[str, Rule] = {
    "mean": Mean(),
    "median": Median(),
    "trimmed mean, 0.3": TrimmedMean(trim=0.3),
    "Krum, f = 3": Krum(num_bad=3),
    "multi-Krum, f = 3": MultiKrum(num_bad=3),
    "norm clipping": NormClipping(),
    "geometric median": GeometricMedian(),
}


class Attacked(FedAvg):
    """FedAvg whose first clients lie.

    Args:
        attack: One of `ATTACKS`.
        num_bad: How many lie.
    """

    def __init__(self, attack: str = "sign_flip", num_bad: int = 0) -> None:
        super().__init__(MLP, SGD)
        self.attack = attack
        self.num_bad = num_bad

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        held = list(uploads)
        bad = [upload for upload in held if upload.client < self.num_bad]
        good = [upload for upload in held if upload.client >= self.num_bad]
        if self.attack == "sign_flip":
            bad = [_changed(upload, lambda w, name: current[name] - 100 * (w - current[name])) for upload in bad]
        if self.attack == "noise":
            bad = [_changed(upload, lambda w, name: current[name] + 10 * torch.randn_like(w)) for upload in bad]
        if self.attack == "little":
            z = largest_unseen_z(len(held), len(bad))
            bad = [_changed(upload, lambda w, name: _shifted(good, name, z)) for upload in bad]
        return self.combine([*bad, *good], current)


class FlipsLabels(Attacked):
    """Apart, because a step of its own takes longer than those that fedlit knows."""

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        if self.client is not None and self.client.id < self.num_bad:
            y = 9 - y
        return super().training_step((x, y), batch_idx)


def largest_unseen_z(n: int, m: int) -> float:
    """How many deviations m of n attackers may stand away from the mean and still find a majority around them.

    Example:
        >>> round(largest_unseen_z(50, 24), 3)
        1.426
    """
    if m == 0:
        return 0.0
    supporters = n // 2 + 1 - m
    return max(0.0, NormalDist().inv_cdf((n - m - supporters) / (n - m)))


def _changed(upload: Upload, change) -> Upload:
    return Upload(upload.client, {name: change(w, name) for name, w in upload.state.items()}, upload.weight)


def _shifted(good: list[Upload], name: str, z: float) -> Tensor:
    values = torch.stack([upload.state[name] for upload in good])
    return values.mean(dim=0) - z * values.std(dim=0)


def accuracy(rule: Rule, attack: str, num_bad: int, rounds: int, alpha: float | None, seed: int) -> float | None:
    """Of the global model on the test set after the last round; None: the run died of it."""
    partition = IID() if alpha is None else Dirichlet(alpha=alpha, min_samples=60)
    data = FederatedData(num_clients=10, partition=partition, batch_size=20)
    torch.manual_seed(seed)
    method = FlipsLabels if attack == "label_flip" else Attacked
    federation = Federation(
        num_rounds=rounds,
        eval_every_n_rounds=rounds,
        save_every_n_rounds=rounds,
        aggregator=rule,
        fast=True,
        logger=False,
        report=False,
        enable_progress_bar=False,
        accelerator="cpu",
        seed=seed,
        default_root_dir="attacks",
    )
    try:
        federation.fit(method(attack, num_bad), data)
    except RuntimeError:  # no client could train from what the rule made
        return None
    return federation.state.scores.last["acc/global_on_pooled"]["mean"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--counts", type=int, nargs="+", default=[1, 2, 3, 4], help="attackers of ten")
    parser.add_argument("--attacks", nargs="+", default=ATTACKS, choices=ATTACKS)
    parser.add_argument("--rules", nargs="+", default=list(RULES), choices=list(RULES))
    parser.add_argument("--alpha", type=float, help="deal samples by Dirichlet(alpha); equal parts by default")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    start = time.time()
    cells = [("none", 0), *((attack, count) for attack in args.attacks for count in args.counts)]
    print("| rule |", " | ".join(f"{attack} {count}" for attack, count in cells), "|")
    print("|---|", "---|" * len(cells), sep="")
    for name in args.rules:
        found = [accuracy(RULES[name], *cell, args.rounds, args.alpha, args.seed) for cell in cells]
        print(f"| {name} |", " | ".join("fails" if a is None else f"{a:.3f}" for a in found), "|", flush=True)
    print(f"{time.time() - start:.0f} s of {len(cells) * len(args.rules)} runs", file=sys.stderr)


if __name__ == "__main__":
    main()
