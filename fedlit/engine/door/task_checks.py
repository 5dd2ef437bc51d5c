"""Checks at the door of what a method measures: its task, its loss, its metrics, and those of the user."""

from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor
from torchmetrics import Metric

from fedlit.engine.options import Options
from fedlit.engine.scoring.measures import LOSS, Measures
from fedlit.inputs import tensors
from fedlit.methods.base import FederatedModule, loss_of, task_of
from fedlit.methods.stage import Stage
from fedlit.tasks import Classification, Task

LOGGED = ("trained_on_train", "trained_on_own", "global_on_server")  # under whatever name a method gives
SELF_EXPLANATORY = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)


def check_measures(model: FederatedModule, stages: list[Stage], options: Options) -> Measures:
    """What is measured can be told apart, and is what is monitored and watched."""
    check_task(model)
    measures = _measures(model, options.metrics)
    for name in options.metrics:
        if name in (*measures.own, LOSS):
            known = " and ".join([*measures.own, LOSS])
            raise ValueError(
                f"`trainer.metrics` must leave {known} to the federation, which measures them anyway; "
                f"give {name!r} another name."
            )
    _check_monitor(measures, options.monitor)
    for stage in stages:
        _check_early_stopping(stage, stage.module or model)
    return measures


def check_task(model: FederatedModule) -> None:
    """A method is for the task that it has."""
    kind = type(model).__name__
    if isinstance(model.task, type) and issubclass(model.task, Task):
        raise ValueError(f"`model.task` of {kind} must be a task, such as {model.task.__name__}(), got the class.")
    allowed = () if model.card is None else model.card.tasks
    if allowed and task_of(model).name not in allowed:
        raise ValueError(f"`model.task`: {kind} is for {' and '.join(allowed)}, got {task_of(model).name}.")


def _measures(model: FederatedModule, more: Mapping[str, Metric]) -> Measures:
    kind = type(model).__name__
    try:
        measures = Measures(model, more)
    except Exception as error:  # a method raises what it likes
        raise ValueError(f"`model`: `metrics` of {kind}: {first_line(error)}") from error
    own = measures.own
    if not isinstance(own, dict) or not all(isinstance(metric, Metric) for metric in own.values()):
        raise ValueError(f"`model`: `metrics` of {kind} must give metrics of torchmetrics by name, got {own!r}.")
    for name in own:
        if not isinstance(name, str) or not name or not name.isprintable() or name == LOSS:
            raise ValueError(
                f"`model`: `metrics` of {kind} must have names of printable characters other than {LOSS}, got {name!r}."
            )
    return measures


def _check_monitor(measures: Measures, monitor: str | None) -> None:
    """What is never measured would never be best."""
    if monitor is None:
        return
    metric, _, where = monitor.rpartition("/")
    if metric not in measures.names and where not in LOGGED:
        raise ValueError(
            f"`trainer.monitor` must be metric/model_on_data, such as {measures.first}/global_on_pooled, "
            f"with a metric of {', '.join(measures.names)}, got {monitor}."
        )


def _check_early_stopping(stage: Stage, learner: FederatedModule) -> None:
    rule = stage.early_stopping
    if rule is None:
        return
    known = [LOSS, *Measures(learner, {}).own]
    if rule.metric not in known:
        raise ValueError(f"Early stopping of stage {stage.name!r} must watch {' or '.join(known)}, got {rule.metric}.")


def check_targets(model: FederatedModule, target: Any, num_classes: int) -> None:
    """A classification has classes."""
    if not isinstance(task_of(model), Classification) or not Measures(model, {}).are_of_classes:
        return
    are_classes = isinstance(target, Tensor) and target.dtype == torch.int64 and target.ndim == 1
    if are_classes and num_classes > 0:
        return
    kind = type(model).__name__
    told = f"`model.task` of {kind} is classification, whose targets are class indices [N], but the data's are"
    remedy = "another is of fedlit.tasks, such as Regression"
    if model.card is not None and model.card.tasks:
        remedy = f"{kind} is for nothing else"
    raise ValueError(f"{told} {told_tree(target)}; {remedy}.")


def check_own_task(model: FederatedModule, measures: Measures, output: Any, target: Any, whose: str) -> None:
    """A loss and metrics that are not those of a classification are tried on the outputs for two samples."""
    kind = type(model).__name__
    shapes = f"outputs {told_tree(output)} of the {whose} with targets {told_tree(target)}"
    try:
        loss = loss_of(model)(output, target)
    except Exception as error:  # a method raises what it likes
        task = task_of(model).name
        raise ValueError(f"`model`: `loss` of {kind} ({task}) cannot compare {shapes}: {first_line(error)}") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = told_tree(loss) if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(f"`model`: `loss` of {kind} must give one number, the mean over a batch, got {got}.")
    for name, metric in measures.metrics.items():
        try:
            trial = metric.clone()
            trial.update(*move_data_to_device(task_of(model).measured(output, target), torch.device("cpu")))
            float(trial.compute())
        except Exception as error:
            raise ValueError(
                f"`model`: {measures.told(name)} cannot score {shapes} by one number: {first_line(error)}"
            ) from error


def told_tree(tree: Any) -> str:
    """What a tree of tensors is, for a person."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} {list(tree.shape)}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{name}: {told_tree(value)}" for name, value in tree.items()) + "}"
    if isinstance(tree, tuple | list) and tensors(tree):
        return "(" + ", ".join(map(told_tree, tree)) + ")"
    return f"a {type(tree).__name__}"


def first_line(error: Exception) -> str:
    """What went wrong; with the kind of error where its text alone would not tell."""
    lines = str(error).splitlines()
    name = type(error).__name__
    if not lines:
        return name
    return lines[0] if isinstance(error, SELF_EXPLANATORY) else f"{name}: {lines[0]}"
