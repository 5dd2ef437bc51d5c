"""Accuracy, loss and any other torchmetrics metric of a network, for one client or for many in one pass."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn
from torchmetrics import Metric
from torchmetrics.functional.classification import multiclass_accuracy

from fedlit.data.batches import Batches
from fedlit.engine.precision import autocast, convert_input

Scores = dict[str, float]


@torch.no_grad()
def outputs(fabric: Fabric, network: Callable[[Tensor], Tensor], batches: Batches) -> tuple[Tensor, Tensor]:
    """Logits ``[N, C]`` and targets ``[N]`` of all batches, in evaluation mode."""
    was_training = isinstance(network, nn.Module) and network.training
    if isinstance(network, nn.Module):
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
    fabric: Fabric, network: Callable[[Tensor], Tensor], batches: Batches, metrics: Mapping[str, Metric] | None = None
) -> Scores:
    """The scores of a network on some samples; none if there are none."""
    if len(batches.y) == 0:
        return {}
    logits, target = outputs(fabric, network, batches)
    return scores_by_group(logits, target, [len(target)], metrics or {})[0]


def scores_by_group(
    logits: Tensor, target: Tensor, sizes: Sequence[int], metrics: Mapping[str, Metric]
) -> list[Scores]:
    """Scores of consecutive groups of samples, such as the clients' validation sets laid end to end.

    Example:
        >>> z = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
        >>> [round(s["acc"], 2) for s in scores_by_group(z, torch.tensor([0, 1, 0]), [1, 2], {})]
        [1.0, 0.5]
    """
    right = multiclass_accuracy(
        logits.argmax(dim=1, keepdim=True),
        target[:, None],
        logits.shape[1],
        average="micro",
        multidim_average="samplewise",
    )
    columns = {"acc": right, "loss": F.cross_entropy(logits, target, reduction="none")}
    bounds = np.concatenate([[0], np.cumsum(sizes)])
    totals = {name: np.concatenate([[0.0], np.cumsum(c.double().numpy())]) for name, c in columns.items()}
    means = {name: (t[bounds[1:]] - t[bounds[:-1]]) / np.maximum(sizes, 1) for name, t in totals.items()}
    rows = []
    for group, (start, stop) in enumerate(pairwise(bounds)):
        row = {name: float(values[group]) for name, values in means.items()} if stop > start else {}
        for name, metric in metrics.items() if row else ():
            metric.reset()
            row[name] = float(metric(logits[start:stop], target[start:stop]))
        rows.append(row)
    return rows
