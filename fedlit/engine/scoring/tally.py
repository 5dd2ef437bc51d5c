"""Scores of any task, batch by batch: outputs may differ in shape from one to the next, as texts do in length."""

import warnings
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torchmetrics import Metric

from fedlit.engine.scoring.measures import LOSS, Measures
from fedlit.inputs import batch_size
from fedlit.methods.base import loss_of, task_of
from fedlit.notices import Notice

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


class Tally:
    """The scores of a model, while its outputs come.

    Args:
        measures: What is measured.
    """

    def __init__(self, measures: Measures) -> None:
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
            except Exception as error:  # a metric raises what it likes, perhaps on one client's samples only
                self._leave_out(name, error)

    def scores(self) -> Scores:
        """Of all batches."""
        found = {LOSS: self.loss.mean}
        for name, metric in list(self.metrics.items()):
            try:
                found[name] = number(metric)
            except Exception as error:
                self._leave_out(name, error)
        return {name: found[name] for name in self.measures.names if name in found}

    def _leave_out(self, name: str, error: Exception) -> None:
        tell_left_out(self.measures.told(name), error)
        del self.metrics[name]


def number(metric: Metric) -> float:
    """What a metric has come to."""
    with warnings.catch_warnings():  # of too few samples torchmetrics warns, for every client anew
        warnings.simplefilter("ignore", UserWarning)
        return float(metric.compute())


def tell_left_out(metric: str, error: Exception) -> None:
    """One that cannot be measured says nothing, and is told of."""
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    warnings.warn(f"{metric} is left out where it cannot be measured: {reason}", Notice, 2)
