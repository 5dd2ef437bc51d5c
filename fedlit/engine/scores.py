"""Accuracy, loss and any other torchmetrics metric of a network, for one client or for many in one pass."""

import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.data.batches import Batches
from fedlit.engine.modes import modes_of, restore
from fedlit.engine.precision import autocast, convert_input
from fedlit.notices import Notice
from fedlit.records.rows import Row
from fedlit.rng import isolated

Scores = dict[str, float]


@torch.no_grad()
def outputs(fabric: Fabric, network: nn.Module, batches: Batches) -> tuple[Tensor, Tensor]:
    """Logits ``[N, C]`` and targets ``[N]`` of all batches, in evaluation mode."""
    logits = []
    targets = []
    modes = modes_of(network)
    network.eval()
    context = autocast(fabric)
    try:
        with context():
            for x, y in batches:
                logits.append(network(convert_input(fabric, x.to(fabric.device))).float())
                targets.append(y)
    finally:
        restore(modes)
    return torch.cat(logits).cpu(), torch.cat(targets).cpu()


def sees_samples_apart(fabric: Fabric, network: nn.Module, batches: Batches) -> bool:
    """Whether what a network says of a sample depends neither on others in its batch nor on chance: tried on these.

    BatchNorm without running statistics does the one, dropout that never sleeps the other. Then clients must not share
    a batch: who stands beside whom depends on the number of processes.
    """
    half = batches.num_samples // 2
    parts = [slice(None, half), slice(half, None)]
    with isolated(0):
        before = torch.get_rng_state()
        try:
            together, _ = outputs(fabric, network, replace(batches, batch_size=batches.num_samples))
            apart = torch.cat([outputs(fabric, network, _part(batches, part))[0] for part in parts])
        except Exception:  # its evaluation will tell
            return False
        draws = not torch.equal(before, torch.get_rng_state())
    scale = float(together.abs().nan_to_num().max())
    is_full = fabric.strategy.precision.precision in ("32-true", "64-true")
    tolerance = scale * (1e-4 if is_full else 3e-2)  # batches of another size round otherwise
    return not draws and torch.allclose(together, apart, rtol=0, atol=tolerance, equal_nan=True)


def _part(batches: Batches, part: slice) -> Batches:
    return replace(batches, x=batches.x[part], y=batches.y[part])


def evaluate(
    fabric: Fabric, network: nn.Module, batches: Batches, metrics: Mapping[str, Metric] | None = None
) -> Scores:
    """The scores of a network on some samples; none if there are none."""
    if batches.num_samples == 0:
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
                value = _measured(name, metric, logits[start:stop], target[start:stop])
                if value is not None:
                    scores[name] = value
        groups.append(scores)
    return groups


def _measured(name: str, metric: Metric, logits: Tensor, target: Tensor) -> float | None:
    """What a metric says of a client's samples; one that cannot says nothing, and is told of."""
    try:
        metric.reset()
        return float(metric(logits, target))
    except Exception as error:  # a metric raises what it likes, perhaps on one client's samples only
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        warnings.warn(f"`trainer.metrics.{name}` is left out where it cannot be measured: {reason}", Notice, 2)
        return None


def unmeasured(rows: Iterable[Row], metrics: Collection[str]) -> list[tuple[int | str, str, str, str]]:
    """Client, model, data and name of every metric that should stand among a round's rows, and does not.

    Example:
        >>> unmeasured([Row(1, "s", 3, "global", "own", "acc", 0.5)], ["f1"])
        [(3, 'global', 'own', 'f1')]
    """
    if not metrics:
        return []
    found: dict[tuple[int | str, str, str], set[str]] = {}
    for row in rows:
        found.setdefault((row.client, row.model, row.data), set()).add(row.metric)
    missing = []
    for where, names in found.items():
        if "acc" in names and where[2] not in ("train", "server", "public"):  # what a method logs is its own
            missing += [(*where, name) for name in metrics if name not in names]
    return missing


def confusion(logits: Tensor, target: Tensor) -> Tensor:
    """How many samples of each class (rows) were taken for which (columns), ``[C, C]``.

    Example:
        >>> confusion(torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 9.0]]), torch.tensor([0, 1, 0]))
        tensor([[1, 1],
                [0, 1]])
    """
    num_classes = logits.shape[1]
    pairs = target * num_classes + logits.argmax(dim=1)
    return torch.bincount(pairs, minlength=num_classes**2).view(num_classes, num_classes)


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
