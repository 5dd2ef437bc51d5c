"""Accuracy, loss and any other torchmetrics metric of a network, for one client or for many in one pass."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.data.batches import Batches
from fedlit.engine.precision import autocast, convert_input

Scores = dict[str, float]


@torch.no_grad()
def outputs(fabric: Fabric, network: nn.Module, batches: Batches) -> tuple[Tensor, Tensor]:
    """Logits ``[N, C]`` and targets ``[N]`` of all batches, in evaluation mode."""
    was_training = network.training
    network.eval()
    context = autocast(fabric)
    try:
        with context():
            logits = [network(convert_input(fabric, x.to(fabric.device))).float() for x, _ in batches]
    finally:
        if was_training:
            network.train()
    return torch.cat(logits).cpu(), batches.y.cpu()


def evaluate(
    fabric: Fabric, network: nn.Module, batches: Batches, metrics: Mapping[str, Metric] | None = None
) -> Scores:
    """The scores of a network on some samples; none if there are none."""
    if len(batches.y) == 0:
        return {}
    logits, target = outputs(fabric, network, batches)
    return scores_by_group(logits, target, [len(target)], metrics or {})[0]


def scores_by_group(
    logits: Tensor, target: Tensor, sizes: Sequence[int] | np.ndarray, metrics: Mapping[str, Metric]
) -> list[Scores]:
    """Scores of consecutive groups of samples, such as the clients' validation sets laid end to end.

    Example:
        >>> z = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
        >>> [round(s["acc"], 2) for s in scores_by_group(z, torch.tensor([0, 1, 0]), [1, 2], {})]
        [1.0, 0.5]
    """
    right = logits.argmax(dim=1) == target  # torchmetrics' accuracy costs more than a small client's evaluation
    columns = {"acc": right, "loss": F.cross_entropy(logits, target, reduction="none")}
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    means = {name: _means(values.double().numpy(), bounds) for name, values in columns.items()}
    groups: list[Scores] = []
    for group, (start, stop) in enumerate(pairwise(bounds)):
        scores: Scores = {}
        if stop > start:
            scores = {name: float(values[group]) for name, values in means.items()}
            for name, metric in metrics.items():
                metric.reset()
                scores[name] = float(metric(logits[start:stop], target[start:stop]))
        groups.append(scores)
    return groups


def _means(values: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """The mean of the values between each bound and the next; 0 where there are none.

    Each is summed by itself: in differences of one running sum, a client's nan would be everybody's after it.
    """
    sizes = np.diff(bounds)
    means = np.zeros(len(sizes))
    is_filled = sizes > 0  # `reduceat` would give an empty group the value that follows it
    if is_filled.any():
        sums = np.add.reduceat(values, bounds[:-1][is_filled])
        means[is_filled] = sums / sizes[is_filled]
    return means
