"""The networks and optimisers of the first clients, tried on two samples before the first round."""

import warnings
from collections.abc import Iterator, Mapping
from inspect import signature
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.data import FederatedData
from fedlit.data.client import Client
from fedlit.data.remote import take_classes
from fedlit.engine.lightning_hooks import overridden, step_loss, takes_batch_idx, trial_training
from fedlit.engine.logged_values import logging_to_means, refusing_logs
from fedlit.engine.metrics import CLASSES, LOSS, MetricSet
from fedlit.engine.optimisation import as_list, check_number, check_settings
from fedlit.engine.options import Options
from fedlit.engine.precision import autocast, convert_input
from fedlit.fast.memory import lay_out
from fedlit.inputs import applied, batch_size, tensors
from fedlit.methods.base import FederatedModule, loss_of, task_of
from fedlit.methods.factories import for_client, kind
from fedlit.methods.stage import Stage
from fedlit.methods.states import twin
from fedlit.notices import Notice
from fedlit.rng import isolated
from fedlit.tasks import Classification

LOGGED = ("trained_on_train", "trained_on_own", "global_on_server")  # under whatever name a method gives
SELF_EXPLANATORY = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)


def check_measures(model: FederatedModule, stages: list[Stage], options: Options) -> MetricSet:
    """Task, metrics and what is monitored or stops training early; the metrics."""
    kind = type(model).__name__
    allowed = () if model.card is None else model.card.tasks
    if allowed and task_of(model).name not in allowed:
        raise ValueError(f"`model.task`: {kind} is for {' and '.join(allowed)}, got {task_of(model).name}.")
    try:
        measures = MetricSet(model, options.metrics)
    except Exception as error:  # a method may raise anything
        raise ValueError(f"`model`: `metrics` of {kind}: {first_line(error)}") from error
    own = measures.own
    if not isinstance(own, dict) or not all(isinstance(metric, Metric) for metric in own.values()):
        raise ValueError(f"`model`: `metrics` of {kind} must give metrics of torchmetrics by name, got {own!r}.")
    for name in options.metrics:
        if name in (*own, LOSS):
            raise ValueError(
                f"`trainer.metrics` must leave {' and '.join([*own, LOSS])} to the federation, which measures them "
                f"anyway; give {name!r} another name."
            )
    if options.monitor is not None:
        _check_monitor(measures, stages, options.monitor)
    for stage in stages:
        known = [LOSS, *MetricSet(stage.module or model, {}).own]
        if stage.early_stopping is not None and stage.early_stopping.metric not in known:
            raise ValueError(
                f"Early stopping of stage {stage.name!r} must watch {' or '.join(known)}, got "
                f"{stage.early_stopping.metric}."
            )
    return measures


def _check_monitor(measures: MetricSet, stages: list[Stage], monitor: str) -> None:
    """Refuse to monitor what is never measured."""
    metric, _, where = monitor.rpartition("/")
    if metric not in measures.names and where not in LOGGED:
        raise ValueError(
            f"`trainer.monitor` must be metric/model_on_data, such as {measures.first}/global_on_pooled, "
            f"with a metric of {', '.join(measures.names)}, got {monitor}."
        )
    models = {"global", "trained", *(stage.reported_as for stage in stages if stage.reported_as)}
    monitored = where.partition("_on_")[0]
    if monitored not in models:
        known = ", ".join(sorted(models))
        raise ValueError(f"`trainer.monitor` names the model {monitored!r}, but there are {known}.")


def check_targets(model: FederatedModule, target: Any, num_classes: int) -> None:
    """A classification has classes."""
    if not isinstance(task_of(model), Classification) or not MetricSet(model, {}).are_of_classes:
        return
    are_classes = isinstance(target, Tensor) and target.dtype == torch.int64 and target.ndim == 1
    if are_classes and num_classes > 0:
        return
    kind = type(model).__name__
    problem = f"`model.task` of {kind} is classification, whose targets are class indices [N], but the data's are"
    remedy = "another is of fedlit.tasks, such as Regression"
    if model.card is not None and model.card.tasks:
        remedy = f"{kind} is for nothing else"
    raise ValueError(f"{problem} {describe_tree(target)}; {remedy}.")


def check_own_task(model: FederatedModule, measures: MetricSet, output: Any, target: Any, whose: str) -> None:
    """A loss and metrics that are not those of a classification are tried on the outputs for two samples."""
    kind = type(model).__name__
    shapes = f"outputs {describe_tree(output)} of the {whose} with targets {describe_tree(target)}"
    try:
        loss = loss_of(model)(output, target)
    except Exception as error:  # a method may raise anything
        task = task_of(model).name
        raise ValueError(f"`model`: `loss` of {kind} ({task}) cannot compare {shapes}: {first_line(error)}") from error
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        got = describe_tree(loss) if isinstance(loss, Tensor) else repr(loss)
        raise ValueError(f"`model`: `loss` of {kind} must give one number, the mean over a batch, got {got}.")
    for name, metric in measures.metrics.items():
        try:
            trial = metric.clone()
            trial.update(*move_data_to_device(task_of(model).measured(output, target), torch.device("cpu")))
            float(trial.compute())
        except Exception as error:
            raise ValueError(
                f"`model`: {measures.describe(name)} cannot score {shapes} by one number: {first_line(error)}"
            ) from error


def describe_tree(tree: Any) -> str:
    """Dtypes and shapes of a tree of tensors."""
    if isinstance(tree, Tensor):
        return f"{str(tree.dtype).removeprefix('torch.')} {list(tree.shape)}"
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{name}: {describe_tree(value)}" for name, value in tree.items()) + "}"
    if isinstance(tree, tuple | list) and tensors(tree):
        return "(" + ", ".join(map(describe_tree, tree)) + ")"
    return f"a {type(tree).__name__}"


def first_line(error: Exception) -> str:
    """The first line of an error, with its class where the text alone is not clear."""
    lines = str(error).splitlines()
    name = type(error).__name__
    if not lines:
        return name
    return lines[0] if isinstance(error, SELF_EXPLANATORY) else f"{name}: {lines[0]}"


NETWORK_CHOICES = {"client_networks", "client_memes", "client_classes"}  # what our methods build by
CHECKED_CLIENTS = 50  # networks of so many clients are tried on a sample before the first round


def check_clients(model: FederatedModule, data: FederatedData, fabric: Fabric, measures: MetricSet) -> None:
    """The networks of the first clients, one of each kind, are tried on two samples."""
    target = two_samples(data, fabric)[1]
    check_targets(model, target, data.splits.num_classes)
    for trial, client, x in networks_to_try(model, data, fabric):
        _check_client(trial, client, (x, target), fabric, measures)


def two_samples(data: FederatedData, fabric: Fabric) -> tuple[Any, Any]:
    """Inputs and targets, of the test set, on the device that trains."""
    x, y = move_data_to_device(next(iter(data.test_batches().first(2))), fabric.device)
    return convert_input(fabric, x), convert_input(fabric, y)


def networks_to_try(
    model: FederatedModule, data: FederatedData, fabric: Fabric
) -> Iterator[tuple[FederatedModule, Client, Any]]:
    """A copy of the method for one client of each kind among the first, in evaluation mode, and two samples."""
    trial = twin(model)  # building the clients' networks must not change the one that is about to train
    fabric.strategy.precision.convert_module(trial)
    trial.to(fabric.device)  # the model itself is moved later, and autocast is that of the device
    trial.eval()
    x = two_samples(data, fabric)[0]
    tried: set[str] = set()
    with isolated(0):
        for k in _clients_to_try(data):
            client = data.client(k)
            chosen = _chosen(model, client)
            if chosen not in tried:
                trial.client = client
                if is_overridden("configure_client", trial, FederatedModule):
                    with refusing_logs(trial, "configure_client"):
                        trial.configure_client(client)
                    trial.to(device=fabric.device, dtype=trial.dtype)
                trial.eval()
                yield trial, client, x
            tried.add(chosen)


def _clients_to_try(data: FederatedData) -> list[int]:
    """The first ones; on the host of a client, that client."""
    if data.only_client is not None:
        return [data.only_client]
    return list(range(min(data.num_clients, CHECKED_CLIENTS)))


def _chosen(model: FederatedModule, client: Client) -> str:
    """A client's choices; of two clients with equal ones, only the first is tried."""
    num_clients = client.data.num_clients
    choices = {name: value for name, value in vars(model).items() if _is_choice(name, value, num_clients)}
    builds_by_choice = NETWORK_CHOICES & choices.keys()
    if is_overridden("configure_client", model, FederatedModule) and not builds_by_choice:
        return str(client.id)  # it may build anything
    chosen = [kind(for_client(None, given, client)) for given in choices.values()]
    return repr([client.num_classes, *chosen])


def _is_choice(name: str, value: object, num_clients: int) -> bool:
    """Whether an attribute is a choice per client."""
    if not name.startswith("client_"):
        return False
    return value is None or isinstance(value, dict) or (isinstance(value, list) and len(value) == num_clients)


@torch.no_grad()
def _check_client(
    model: FederatedModule, client: Client, samples: tuple[Any, Any], fabric: Fabric, measures: MetricSet
) -> None:
    """The client's network takes its samples and gives what the task needs, and its optimiser can be built."""
    x, target = samples
    networks = {f"network of client {client.id}": model, "global model": model.global_model()}
    for whose, network in networks.items():
        with autocast(fabric)():
            z = _outputs(network, whose, x)
        if measures.are_of_classes:
            _check_classes(network, whose, client, z, batch_size(x, target))
        else:
            check_own_task(model, measures, z, target, whose)
    _check_optimizer(model, client, fabric)


def _check_optimizer(model: FederatedModule, client: Client, fabric: Fabric) -> None:
    try:
        with trial_training(model, client, fabric):
            optimizers = as_list(model.configure_optimizers())
        check_number(model, optimizers)
        for optimizer in optimizers:
            check_settings(optimizer, model)
    except Exception as error:  # a method may raise anything
        source = "`model.optimizer`"
        if overridden(model, frozenset({"configure_optimizers"})):
            source = f"`model`: `configure_optimizers` of {type(model).__name__}"
        raise ValueError(f"{source} of client {client.id}: {first_line(error)}") from error


def _outputs(network: nn.Module, whose: str, x: Any) -> Any:
    try:
        return applied(network, x)
    except Exception as error:  # a network may raise anything
        hint = ""
        if "dtype" in str(error):
            hint = "; see `trainer.precision`"
        inputs = f"of shape {list(x.shape[1:])}" if isinstance(x, Tensor) else describe_tree(x)
        raise ValueError(f"`model`: the {whose} cannot take inputs {inputs}: {first_line(error)}{hint}") from error


def _check_classes(network: nn.Module, whose: str, client: Client, output: Any, number: int) -> None:
    """A logit per class, of each of so many samples."""
    try:
        z = CLASSES.output(output)
    except ValueError as error:
        raise ValueError(f"`model`: the {whose}{str(error).removeprefix('a network')}") from error
    shape = list(z.shape)
    if client.data.only_client is not None and len(shape) == 2:
        take_classes(client.data, shape[1])
        client = client.data.client(client.id)
    if shape == [number, client.num_classes]:
        return
    remedy = "change its last layer"
    if any("num_classes" in signature(type(part)).parameters for part in network.modules()):
        remedy = "set its `num_classes`"
    if len(shape) == 2 and shape[1] > client.num_classes and client.data.num_classes is None:
        remedy += f", or `data.num_classes: {shape[1]}` if no sample is of the highest classes"
    wanted = f"the {whose} must give {client.num_classes} outputs, one per class of the data, got shape {shape[1:]}"
    labels = client.data.describe_labels()
    if labels is None:
        raise ValueError(f"`model`: {wanted}; {remedy}.")
    raise ValueError(
        f"{labels}, but must be 0 to C - 1 for C classes: subtract {client.data.splits.lowest_class}. "
        f"If they are right, and no sample is of class 0, {wanted}; {remedy}."
    )


def layout_for(model: FederatedModule, data: FederatedData, fabric: Fabric, fast: bool) -> torch.memory_format:
    """Channels last in fast mode, where the networks of all kinds of clients, and own steps, run with it."""
    if not fast:
        return torch.contiguous_format
    target = two_samples(data, fabric)[1]
    for trial, client, x in networks_to_try(model, data, fabric):
        if not any(isinstance(part, nn.Conv2d) for part in trial.modules()):
            continue
        lay_out(trial, torch.channels_last)
        try:
            with autocast(fabric)():
                _try_networks(trial, x)
                _try_step(trial, client, (x, target), fabric)
        except Exception as error:  # a method may raise anything
            message = f"images of {type(model).__name__} keep their layout; a trial in that of fast mode: "
            warnings.warn(f"`trainer.fast`: {message}{first_line(error)}", Notice, stacklevel=2)
            return torch.contiguous_format
    return torch.channels_last


def _is_known(method: FederatedModule) -> bool:
    """Whether its steps are fedlit's own, which run in any layout."""
    return type(method).training_step.__module__.startswith("fedlit.")


@torch.no_grad()
def _try_networks(trial: FederatedModule, x: Any) -> None:
    trial(x)
    applied(trial.global_model(), x)


@torch.enable_grad()
def _try_step(trial: FederatedModule, client: Client, samples: tuple[Any, Any], fabric: Fabric) -> None:
    """A step of the user's own and its gradients, on a copy of the method."""
    parts = [part for part in trial.modules() if isinstance(part, FederatedModule) and not _is_known(part)]
    if not parts:
        return
    if parts != [trial]:
        raise ValueError(f"{type(parts[-1]).__name__}, a part of it, has steps of its own, which are not tried.")
    batch = (*samples, torch.arange(2, device=fabric.device)) if trial.wants_index else samples
    with trial_training(trial, client, fabric), logging_to_means(trial):
        trial.on_client_start(client)
        given = (batch, 0) if takes_batch_idx(trial.training_step) else (batch,)
        result = trial.training_step(*given)  # type: ignore[arg-type, call-arg]
        loss = result if isinstance(result, Tensor) else step_loss(result)
        if trial.automatic_optimization and loss is not None:
            loss.backward()
