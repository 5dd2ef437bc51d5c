"""Metrics of a model, batch by batch: from outputs to scores."""

import warnings
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from lightning.fabric import Fabric
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.data.batches import Batches
from fedlit.engine.precision import autocast, convert_input, widened
from fedlit.inputs import applied, batch_size
from fedlit.methods.base import FederatedModule, loss_of, metrics_of, task_of
from fedlit.modes import evaluating
from fedlit.notices import Notice
from fedlit.records.rows import Row
from fedlit.rng import isolated
from fedlit.tasks import Accuracy, Classification

LOSS = "loss"
CLASSES = Classification()
Scores = dict[str, float]


class MetricSet:
    """Loss and metrics of every model of a method.

    Attributes:
        own: The method's metrics, by name.
        metrics: All but the loss.
        names: In the order of records: the method's own, the loss, the user's.
        first: The metric that models are compared by, by default.
    """

    def __init__(self, method: FederatedModule, more: Mapping[str, Metric]) -> None:
        self.method = method
        self.more = more
        self.own = metrics_of(method)
        self.metrics = {**self.own, **more}
        self.names = [*self.own, LOSS, *more]
        self.first = self.names[0]

    @property
    def are_of_classes(self) -> bool:
        """Whether they are those of a classification, which many clients can have in one pass."""
        kind = type(self.method)
        is_own = kind.loss is not FederatedModule.loss or kind.metrics is not FederatedModule.metrics
        return not is_own and "loss" not in vars(self.method) and type(task_of(self.method)) is Classification

    def rises(self, name: str) -> bool:
        """Whether a higher value is a better one: as its metric says, else whatever is no loss."""
        says = getattr(self.metrics.get(name), "higher_is_better", None)
        if says is not None:
            return bool(says)
        return LOSS not in name

    @property
    def directions(self) -> dict[str, str]:
        """Whether each is to rise or to fall, in order, for whoever reads the records."""
        return {name: "max" if self.rises(name) else "min" for name in self.names}

    def describe(self, name: str) -> str:
        """A metric, by the option or method that it comes from."""
        if name in self.more:
            return f"`trainer.metrics.{name}`"
        return f"{name!r} of `metrics` of {type(self.method).__name__}"


def each_output(fabric: Fabric, network: nn.Module, batches: Batches) -> Iterator[tuple[Any, Any]]:
    """Outputs of a network for each batch, in single precision at least, and targets, on the device."""
    context = autocast(fabric)
    with evaluating(network):
        for x, y in batches:
            x = convert_input(fabric, _moved(x, fabric.device))
            with torch.no_grad(), context():
                output = applied(network, x)
            yield widened(output), convert_input(fabric, _moved(y, fabric.device))


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor) and batch.device == device:  # most are, and to ask takes longer than a small batch
        return batch
    return move_data_to_device(batch, device)


def outputs(fabric: Fabric, network: nn.Module, batches: Batches) -> tuple[Tensor, Tensor]:
    """Logits ``[N, C]`` and targets ``[N]`` of all batches."""
    logits: list[Tensor] = []
    targets: list[Tensor] = []
    for output, target in each_output(fabric, network, batches):
        logits.append(CLASSES.output(output).float())
        targets.append(target)
    return torch.cat(logits).cpu(), torch.cat(targets).cpu()


def is_batch_independent(fabric: Fabric, network: nn.Module, batches: Batches) -> bool:
    """Whether outputs depend neither on other samples of the batch nor on chance, tried on these batches.

    BatchNorm without running statistics does the one, dropout in evaluation mode the other. Then clients must not share
    a batch.
    """
    if not batches.is_in_memory:  # they would have to be read twice
        return False
    num_samples = batches.num_samples
    try:
        with isolated(0):
            together, _ = outputs(fabric, network, replace(batches, batch_size=num_samples))
            apart, _ = outputs(fabric, network, replace(batches, batch_size=(num_samples + 1) // 2))
    except Exception:  # its evaluation will report it
        return False
    is_full = fabric.strategy.precision.precision in ("32-true", "64-true")
    tolerance = float(together.abs().nan_to_num().max()) * (1e-4 if is_full else 3e-2)  # sizes of batches round apart
    return torch.allclose(together, apart, rtol=0, atol=tolerance, equal_nan=True)


class MeanLoss:
    """The mean over samples of a loss that is a mean over each batch."""

    def __init__(self) -> None:
        self.total = 0.0
        self.samples = 0

    def add(self, loss: Any, samples: int) -> None:
        self.total += float(loss) * samples
        self.samples += samples

    @property
    def mean(self) -> float:
        return self.total / self.samples


def evaluate(fabric: Fabric, network: nn.Module, batches: Batches, measures: MetricSet) -> Scores:
    """The scores of a network on some samples; none if there are none."""
    if batches.num_samples == 0:
        return {}
    if measures.are_of_classes:
        logits, target = outputs(fabric, network, batches)
        return scores_by_group(logits, target, [len(target)], measures)[0]
    task = task_of(measures.method)
    loss_function = loss_of(measures.method)
    loss = MeanLoss()
    metrics = dict(measures.metrics)
    for metric in metrics.values():
        metric.reset()
    for output, target in each_output(fabric, network, batches):
        with torch.no_grad():
            loss.add(loss_function(output, target), batch_size(output, target))
            given = move_data_to_device(task.measured(output, target), torch.device("cpu")) if metrics else ()
            for name in [*metrics]:
                with _left_out_if_it_fails(name, metrics, measures):
                    metrics[name].update(*given)
    scores = {LOSS: loss.mean}
    for name in [*metrics]:
        with _left_out_if_it_fails(name, metrics, measures), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # torchmetrics' of too few samples, for every client anew
            scores[name] = float(metrics[name].compute())
    return {name: scores[name] for name in measures.names if name in scores}


def scores_by_group(
    logits: Tensor, target: Tensor, sizes: Sequence[int] | np.ndarray, measures: MetricSet
) -> list[Scores]:
    """Scores of consecutive groups of samples, such as the clients' validation sets laid end to end.

    Args:
        logits: ``[N, C]``.
        target: Classes ``[N]``.
        sizes: Samples of each group, at least 1.
        measures: Cross-entropy, accuracy, and what else is measured.
    """
    means = {LOSS: _means(F.cross_entropy(logits, target, reduction="none"), sizes)}
    for name, metric in measures.metrics.items():
        if type(metric) is Accuracy:  # of all groups at once: a metric costs more than a small client's evaluation
            means[name] = _means(logits.argmax(dim=1) == target, sizes)
    groups: list[Scores] = []
    for group, (start, stop) in enumerate(pairwise(accumulate(map(int, sizes), initial=0))):
        scores: Scores = {}
        metrics = dict(measures.metrics)
        for name in measures.names:
            if name in means:
                scores[name] = means[name][group]
                continue
            with _left_out_if_it_fails(name, metrics, measures):
                metrics[name].reset()
                scores[name] = float(metrics[name](logits[start:stop], target[start:stop]))
        groups.append(scores)
    return groups


def _means(values: Tensor, sizes: Sequence[int] | np.ndarray) -> list[float]:
    """The mean of each group, which is summed by itself: in differences of one running sum, a nan would spread."""
    starts = [0, *accumulate(map(int, sizes))][:-1]
    return (np.add.reduceat(values.double().numpy(), starts) / np.asarray(sizes)).tolist()


@contextmanager
def _left_out_if_it_fails(name: str, metrics: dict[str, Metric], measures: MetricSet) -> Iterator[None]:
    """A metric may raise anything, perhaps on one client's samples only; it then has no row there."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        message = f"{measures.describe(name)} is left out where it cannot be measured: {reason}"
        warnings.warn(message, Notice, stacklevel=2)
        del metrics[name]


def unmeasured(rows: Iterable[Row], metrics: Collection[str]) -> list[tuple[int | str, str, str, str]]:
    """Client, model, data and name of every metric that should stand among a round's rows, and does not.

    Example:
        >>> unmeasured([Row(1, "s", 3, "global", "own", "loss", 0.5)], ["f1"])
        [(3, 'global', 'own', 'f1')]
    """
    found: dict[tuple[int | str, str, str], set[str]] = defaultdict(set)
    for row in rows:
        found[row.client, row.model, row.data].add(row.metric)
    missing = []
    for where, names in found.items():
        if LOSS in names and where[2] not in ("train", "server", "public"):  # what a method logs is its own
            missing += [(*where, name) for name in metrics if name not in names]
    return missing
