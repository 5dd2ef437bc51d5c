"""Metrics of a model, batch by batch: from outputs to scores."""

import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
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
from fedlit.data.loaders import AnyBatches
from fedlit.engine.live_module import modes_of, restore
from fedlit.engine.precision import autocast, convert_input, mapped_tensors
from fedlit.inputs import applied, batch_size
from fedlit.methods.base import FederatedModule, loss_of, metrics_of, task_of
from fedlit.notices import Notice
from fedlit.records.rows import Row
from fedlit.rng import isolated, torch_states
from fedlit.tasks import Accuracy, Classification, Task

LOSS = "loss"


def measures_classes(method: FederatedModule) -> bool:
    """Whether a method measures cross-entropy and accuracy alone; those of many clients take one pass."""
    kind = type(method)
    is_own = kind.loss is not FederatedModule.loss or kind.metrics is not FederatedModule.metrics
    return not is_own and "loss" not in vars(method) and type(task_of(method)) is Classification


class MetricSet:
    """Loss and metrics of every model of a method.

    Args:
        method: Whose `loss` and `metrics`.
        more: By `trainer.metrics`.

    Attributes:
        own: The method's metrics, by name.
    """

    def __init__(self, method: FederatedModule, more: Mapping[str, Metric]) -> None:
        self.method = method
        self.more = more
        self.own = metrics_of(method)

    @property
    def are_of_classes(self) -> bool:
        """Whether they are those of a classification, which many clients can have in one pass."""
        return measures_classes(self.method)

    @property
    def metrics(self) -> dict[str, Metric]:
        """All but the loss."""
        return {**self.own, **self.more}

    @property
    def names(self) -> list[str]:
        """In the order of records: the method's own, the loss, the user's."""
        return [*self.own, LOSS, *self.more]

    @property
    def first(self) -> str:
        """The metric that models are compared by, by default."""
        return next(iter(self.own), LOSS)

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


CLASSES = Classification()


def each_output(fabric: Fabric, network: nn.Module, batches: AnyBatches) -> Iterator[tuple[Any, Any]]:
    """Outputs of a network for each batch, in single precision at least, and targets, on the device."""
    modes = modes_of(network)
    network.eval()
    context = autocast(fabric)
    try:
        for x, y in batches:
            x = convert_input(fabric, _moved(x, fabric.device))
            with torch.no_grad(), context():
                output = applied(network, x)
            target = convert_input(fabric, _moved(y, fabric.device))
            yield mapped_tensors(_widened, output), target
    finally:
        restore(modes)


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor) and batch.device == device:  # most are, and to ask takes longer than a small batch
        return batch
    return move_data_to_device(batch, device)


def _widened(output: Tensor) -> Tensor:
    return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output


def outputs(fabric: Fabric, network: nn.Module, batches: AnyBatches) -> tuple[Tensor, Tensor]:
    """Logits ``[N, C]`` and targets ``[N]`` of all batches."""
    logits: list[Tensor] = []
    targets: list[Tensor] = []
    for output, target in each_output(fabric, network, batches):
        logits.append(CLASSES.output(output).float())
        targets.append(target)
    return torch.cat(logits).cpu(), torch.cat(targets).cpu()


def predictions(fabric: Fabric, network: nn.Module, batches: AnyBatches, task: Task) -> tuple[list[Tensor], list[Any]]:
    """Predictions and targets of each batch."""
    found: list[Tensor] = []
    targets: list[Any] = []
    for output, target in each_output(fabric, network, batches):
        found.append(task.prediction(output).cpu())
        targets.append(move_data_to_device(target, torch.device("cpu")))
    return found, targets


def sees_samples_apart(fabric: Fabric, network: nn.Module, batches: AnyBatches) -> bool:
    """Whether outputs depend neither on other samples of the batch nor on chance, tried on these batches.

    BatchNorm without running statistics does the one, dropout in evaluation mode the other. Then clients must not share
    a batch, whose clients depend on the number of processes.
    """
    if not isinstance(batches, Batches):  # they would have to be read twice
        return False
    with isolated(0):
        before = torch_states()
        try:
            half = batches.num_samples // 2
            parts = [
                replace(batches, x=batches.x[part], y=batches.y[part]) for part in (slice(half), slice(half, None))
            ]
            together, _ = outputs(fabric, network, replace(batches, batch_size=batches.num_samples))
            apart = torch.cat([outputs(fabric, network, part)[0] for part in parts])
        except Exception:  # its evaluation will report it, or its samples are no tensors that could be cut
            return False
        after = torch_states()
        draws = any(not torch.equal(state, after[device]) for device, state in before.items())
    scale = float(together.abs().nan_to_num().max())
    is_full = fabric.strategy.precision.precision in ("32-true", "64-true")
    tolerance = scale * (1e-4 if is_full else 3e-2)  # batches of another size round otherwise
    return not draws and torch.allclose(together, apart, rtol=0, atol=tolerance, equal_nan=True)


CPU = torch.device("cpu")
Scores = dict[str, float]


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


class MetricAccumulator:
    """The scores of a model, while its outputs come."""

    def __init__(self, measures: MetricSet) -> None:
        self.measures = measures
        self.task = task_of(measures.method)
        self.loss_of = loss_of(measures.method)
        self.loss = MeanLoss()
        self.metrics = measures.metrics
        for metric in self.metrics.values():
            metric.reset()

    @torch.no_grad()
    def add(self, output: Any, target: Any) -> None:
        """A batch."""
        self.loss.add(self.loss_of(output, target), batch_size(output, target))
        if not self.metrics:
            return
        given = move_data_to_device(self.task.measured(output, target), CPU)
        for name, metric in list(self.metrics.items()):
            try:
                metric.update(*given)
            except Exception as error:  # a metric may raise anything, perhaps on one client's samples only
                self._leave_out(name, error)

    def scores(self) -> Scores:
        """Scores of all batches."""
        found = {LOSS: self.loss.mean}
        for name, metric in list(self.metrics.items()):
            try:
                with warnings.catch_warnings():  # torchmetrics warns of too few samples, for every client anew
                    warnings.simplefilter("ignore", UserWarning)
                    found[name] = float(metric.compute())
            except Exception as error:
                self._leave_out(name, error)
        return {name: found[name] for name in self.measures.names if name in found}

    def _leave_out(self, name: str, error: Exception) -> None:
        warn_left_out(self.measures.describe(name), error)
        del self.metrics[name]


def warn_left_out(metric: str, error: Exception) -> None:
    """Warn of a metric that cannot be computed and has no row."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    warnings.warn(f"{metric} is left out where it cannot be measured: {reason}", Notice, 2)


DEFAULT = Classification().metrics()


def evaluate(fabric: Fabric, network: nn.Module, batches: AnyBatches, measures: MetricSet | None = None) -> Scores:
    """The scores of a network on some samples, by default as a classifier; none if there are none."""
    if batches.num_samples == 0:
        return {}
    if measures is not None and not measures.are_of_classes:
        tally = MetricAccumulator(measures)
        for output, target in each_output(fabric, network, batches):
            tally.add(output, target)
        return tally.scores()
    logits, target = outputs(fabric, network, batches)
    return scores_by_group(logits, target, [len(target)], measures)[0]


def scores_by_group(
    logits: Tensor, target: Tensor, sizes: Sequence[int] | np.ndarray, measures: MetricSet | None = None
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
                metrics[name].reset()
                scores[name] = float(metrics[name](logits[start:stop], target[start:stop]))
            except Exception as error:  # a metric may raise anything, perhaps on one client's samples only
                warn_left_out(name if measures is None else measures.describe(name), error)
        groups.append(scores)
    return groups


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
    """Confusion matrix ``[C, C]``: true classes in rows, predicted ones in columns.

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
