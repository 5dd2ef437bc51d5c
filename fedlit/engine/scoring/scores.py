"""Scores of a network: of any task for one client, of a classification for many in one pass."""

from collections.abc import Collection, Iterable, Sequence
from itertools import accumulate, pairwise

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.data.loaded import AnyBatches
from fedlit.engine.scoring.measures import LOSS, Measures
from fedlit.engine.scoring.outputs import each_output, outputs
from fedlit.engine.scoring.tally import Scores, Tally, tell_left_out
from fedlit.records.rows import Row
from fedlit.tasks import Accuracy, Classification

DEFAULT = Classification().metrics()


def evaluate(fabric: Fabric, network: nn.Module, batches: AnyBatches, measures: Measures | None = None) -> Scores:
    """The scores of a network on some samples, by default as a classifier; none if there are none."""
    if batches.num_samples == 0:
        return {}
    if measures is not None and not measures.are_of_classes:
        tally = Tally(measures)
        for output, target in each_output(fabric, network, batches):
            tally.add(output, target)
        return tally.scores()
    logits, target = outputs(fabric, network, batches)
    return scores_by_group(logits, target, [len(target)], measures)[0]


def scores_by_group(
    logits: Tensor, target: Tensor, sizes: Sequence[int] | np.ndarray, measures: Measures | None = None
) -> list[Scores]:
    """Scores of consecutive groups of samples, such as the clients' validation sets laid end to end.

    Args:
        logits: ``[N, C]``.
        target: Classes ``[N]``.
        sizes: Samples of each group.
        measures: What is measured beside cross-entropy; accuracy by default.

    Example:
        >>> z = torch.tensor([[9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
        >>> [round(s["acc"], 2) for s in scores_by_group(z, torch.tensor([0, 1, 0]), [1, 2])]
        [1.0, 0.5]
    """
    metrics = DEFAULT if measures is None else measures.metrics
    names = [*DEFAULT, LOSS] if measures is None else measures.names
    columns = {LOSS: F.cross_entropy(logits, target, reduction="none")}
    for name, metric in metrics.items():
        if type(metric) is Accuracy:  # of all groups at once: a metric costs more than a small client's evaluation
            columns[name] = logits.argmax(dim=1) == target
    bounds = [0, *accumulate(map(int, sizes))]
    means = {name: _means(values.double().numpy(), bounds) for name, values in columns.items()}
    groups: list[Scores] = []
    for group, (start, stop) in enumerate(pairwise(bounds)):
        scores: Scores = {}
        for name in names if stop > start else ():
            if name in means:
                scores[name] = means[name][group]
                continue
            try:
                scores[name] = _measured(metrics[name], logits[start:stop], target[start:stop])
            except Exception as error:  # a metric raises what it likes, perhaps on one client's samples only
                tell_left_out(name if measures is None else measures.told(name), error)
        groups.append(scores)
    return groups


def _measured(metric: Metric, logits: Tensor, target: Tensor) -> float:
    metric.reset()
    return float(metric(logits, target))


def unmeasured(rows: Iterable[Row], metrics: Collection[str]) -> list[tuple[int | str, str, str, str]]:
    """Client, model, data and name of every metric that should stand among a round's rows, and does not.

    Example:
        >>> unmeasured([Row(1, "s", 3, "global", "own", "loss", 0.5)], ["f1"])
        [(3, 'global', 'own', 'f1')]
    """
    if not metrics:
        return []
    found: dict[tuple[int | str, str, str], set[str]] = {}
    for row in rows:
        found.setdefault((row.client, row.model, row.data), set()).add(row.metric)
    missing = []
    for where, names in found.items():
        if LOSS in names and where[2] not in ("train", "server", "public"):  # what a method logs is its own
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


def _means(values: np.ndarray, bounds: Sequence[int]) -> list[float]:
    """The mean of the values between each bound and the next; 0 where there are none.

    Each is summed by itself: in differences of one running sum, a client's nan would be everybody's after it.
    """
    sizes = [stop - start for start, stop in pairwise(bounds)]
    # `reduceat` would give an empty group the value that follows it
    starts = [start for start, size in zip(bounds, sizes, strict=False) if size > 0]
    sums = iter(np.add.reduceat(values, starts).tolist() if starts else ())
    return [next(sums) / size if size > 0 else 0.0 for size in sizes]
