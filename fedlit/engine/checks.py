"""Checks before the first round: of method, data and options together, and of networks by a trial on two samples."""

import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from fedlit.aggregation import fewest_uploads
from fedlit.data import FederatedData
from fedlit.data.client import Client
from fedlit.data.items import describe
from fedlit.data.remote import set_num_classes
from fedlit.engine.aggregation import rule_name
from fedlit.engine.encoding import encoded_names
from fedlit.engine.lightning_hooks import LocalTrainer, attached
from fedlit.engine.logged_values import Means, refusing_logs
from fedlit.engine.metrics import CLASSES, LOSS, MetricSet
from fedlit.engine.optimisation import as_lists, check_number, check_settings
from fedlit.engine.options import Options, first_line, refusing
from fedlit.engine.plan import Plan
from fedlit.engine.precision import autocast, convert_input
from fedlit.engine.scheduling import cohort_size, eligible
from fedlit.engine.state import has_custom_download, shared_names
from fedlit.fast.memory import lay_out
from fedlit.inputs import applied, batch_size
from fedlit.methods.base import FederatedModule, check_travels, loss_of, task_of
from fedlit.methods.factories import check_choices, for_client, has_common_networks, kind
from fedlit.methods.hooks import Command, check_hooks, overridden
from fedlit.methods.stage import Stage, check_stages, with_followers
from fedlit.methods.states import twin
from fedlit.modes import left_in_evaluation
from fedlit.notices import Notice
from fedlit.privacy import Accountant, ClientLevelDP
from fedlit.rng import isolated

LOGGED = ("trained_on_train", "trained_on_own", "global_on_server")  # under whatever name a method gives
CHECKED_CLIENTS = 50  # networks of so many clients are tried on a sample before the first round


def check_experiment(
    command: Command, model: FederatedModule, data: FederatedData, options: Options, fabric: Fabric
) -> list[Stage]:
    """Method, data and federation together, for what the federation is asked to do; the method's stages."""
    if not isinstance(model, FederatedModule):
        raise ValueError(f"`model` must be a FederatedModule, got a {type(model).__name__}.")
    if options.min_clients > data.num_clients:
        raise ValueError(
            f"`trainer.min_clients` is {options.min_clients}, but `data.num_clients` is {data.num_clients}."
        )
    if options.client_timeout is not None and (fabric.device.type != "cpu" or options.num_threads > 1):
        raise ValueError(
            "`trainer.client_timeout` forks processes and needs `trainer.accelerator: cpu` and `trainer.num_threads: "
            f"1`, got {fabric.device} and {options.num_threads}."
        )
    check_choices("trainer.client_epochs", dict(options.client_epochs), data.num_clients)
    model.check(data)
    check_travels(model)
    stages = model.configure_stages()
    check_stages(stages, model, data)
    measures = check_measures(model, stages, options)
    check_hooks(model, with_followers(stages), command)
    if command == "fit":
        _warn(model, stages, options)
        data.warn_of_missing_rows()
        _check_exchange(model, stages, data, options)
    check_clients(model, data, fabric, measures)
    if measures.are_of_classes:
        data.warn_of_labels()
    return stages


def _warn(model: FederatedModule, stages: list[Stage], options: Options) -> None:
    """Warn of options that play no part, and of parts in evaluation mode, in which some libraries return networks."""
    messages = []
    kind = type(model).__name__
    if not any(stage.epochs is None and stage.side == "clients" for stage in stages):
        given = [name for name in ("local_epochs", "local_steps", "client_epochs") if getattr(options, name)]
        messages = [f"`trainer.{name}` plays no part: {kind} has options of its own for epochs." for name in given]
    if found := left_in_evaluation(model):
        names = ", ".join(name or "all of it" for name in found[:3]) + (" ..." if len(found) > 3 else "")
        messages.append(f"`model`: {kind} is trained with parts in evaluation mode, as it was made: {names}.")
    for message in messages:
        warnings.warn(message, Notice, stacklevel=2)


def _check_exchange(model: FederatedModule, stages: list[Stage], data: FederatedData, options: Options) -> None:
    """What is to happen to uploads can work, and is asked by this method."""
    averaged = [stage for stage in stages if stage.upload == "aggregate"]
    trained = encoded_names(model, shared_names(model, options.batch_norm))
    for option in ("aggregator", "server_optimizer", "upload_encoder"):
        is_asked = averaged and (option == "aggregator" or trained)
        if getattr(options, option) is not None and not is_asked:
            kind = type(model).__name__
            raise ValueError(f"`trainer.{option}` would never be asked: {kind} averages nothing that trains.")
    if options.aggregator is not None:
        needed = fewest_uploads(options.aggregator)
        smallest = min(cohort_size(options, len(eligible(data, stage))) for stage in averaged)
        if smallest < needed:
            raise ValueError(
                f"`trainer.aggregator` {rule_name(options.aggregator)} needs {needed} uploads in a round, but a round "
                f"has {smallest} clients; see `trainer.fraction_fit`, `trainer.min_clients` and `data.num_clients`."
            )
    if options.server_optimizer is not None:
        state = model.state_dict()
        option = "`trainer.server_optimizer`"
        parameters = [nn.Parameter(state[name].clone()) for name in trained]
        try:
            check_settings(options.server_optimizer(parameters), nn.Module())
        except Exception as error:  # an optimiser may raise anything
            line = first_line(error)
            raise ValueError(line if option[:-1] in line else f"{option}: {line}") from error
    if options.upload_encoder is not None and has_custom_download(model):
        raise ValueError(
            "`trainer.upload_encoder` encodes the difference to what all clients are sent, and `download` of "
            f"{type(model).__name__} sends each something else."
        )
    if options.privacy is not None:
        _check_privacy(options.privacy, model, stages, data, options)


def _check_privacy(
    privacy: ClientLevelDP, model: FederatedModule, stages: list[Stage], data: FederatedData, options: Options
) -> None:
    """All that leaves a client is noised, and there is a budget for at least one round."""
    if problem := _unprotected(model, stages, options):
        raise ValueError(f"`trainer.privacy`: {problem}")
    if options.min_clients > 1:
        raise ValueError(
            f"`trainer.min_clients` is {options.min_clients}, but under `trainer.privacy` every client takes part by "
            "itself with probability `trainer.fraction_fit`."
        )
    if privacy.delta >= 1 / data.num_clients:
        raise ValueError(
            f"`trainer.privacy.delta` must be below 1 / `data.num_clients` = {1 / data.num_clients:.3g}, got "
            f"{privacy.delta}: else publishing all data of one client would count as private."
        )
    accountant = Accountant(privacy, options.fraction_fit)
    if not accountant.allows(1):
        raise ValueError(
            f"`trainer.privacy.target_epsilon` of {privacy.target_epsilon} does not allow a single round; one costs "
            f"{accountant.epsilon(1):.4g}. Raise `trainer.privacy.noise_multiplier`."
        )
    if privacy.noise_seed is not None and privacy.noise_multiplier:
        message = "`trainer.privacy.noise_seed`: whoever has it can subtract the noise; config.yaml holds it."
        warnings.warn(message, Notice, stacklevel=2)
    if model.weighting != "uniform":
        message = f"`trainer.privacy`: every client counts the same, not by its {model.weighting}."
        warnings.warn(message, Notice, stacklevel=2)


def _unprotected(model: FederatedModule, stages: list[Stage], options: Options) -> str | None:
    """What would leave a client without noise, or could not be noised."""
    name = type(model).__name__
    for stage in stages:
        if stage.upload == "collect":
            return f"{name} collects clients' states as they are in stage {stage.name!r}."
        if stage.followed_by is not None or stage.keep_uploads:
            return f"{name} uses clients' states as they are after stage {stage.name!r}."
    if model.upload_only:
        return f"noise is for what is shared, and {name} also uploads {model.upload_only[0]!r}."
    if is_overridden("select_clients", model, FederatedModule):
        return f"every client is drawn by itself, and `select_clients` of {name} chooses them."
    if all(stage.upload == "none" for stage in stages):
        return f"{name} uploads nothing, so there is nothing to protect."
    state = model.state_dict()
    for entry in shared_names(model, options.batch_norm):
        if not state[entry].is_floating_point():
            return (
                f"{entry!r} is a counter, which noise cannot hide; for BatchNorm set `trainer.batch_norm: local`, or "
                "take GroupNorm."
            )
    return None


def check_measures(model: FederatedModule, stages: list[Stage], options: Options) -> MetricSet:
    """Task, metrics and what is monitored or stops training early; the metrics."""
    kind = type(model).__name__
    allowed = () if model.card is None else model.card.tasks
    if allowed and task_of(model).name not in allowed:
        raise ValueError(f"`model.task`: {kind} is for {' and '.join(allowed)}, got {task_of(model).name}.")
    with refusing(f"`model`: `metrics` of {kind}"):
        measures = MetricSet(model, options.metrics)
    for name in options.metrics:
        if name in (*measures.own, LOSS):
            raise ValueError(
                f"`trainer.metrics` must leave {' and '.join([*measures.own, LOSS])} to the federation, which measures "
                f"them anyway; give {name!r} another name."
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
    found = re.fullmatch(r"(.*)/(\w+)_on_(pooled|own|unseen|train|server)", monitor)
    if found is None or (found[1] not in measures.names and f"{found[2]}_on_{found[3]}" not in LOGGED):
        raise ValueError(
            f"`trainer.monitor` must be metric/model_on_data, such as {measures.first}/global_on_pooled, "
            f"with a metric of {', '.join(measures.names)}, got {monitor}."
        )
    models = {"global", "trained", *(stage.reported_as for stage in stages if stage.reported_as)}
    if found[2] not in models:
        raise ValueError(f"`trainer.monitor` names the model {found[2]!r}, but there are {', '.join(sorted(models))}.")


def check_targets(model: FederatedModule, measures: MetricSet, target: Any, num_classes: int) -> None:
    """A classification has classes."""
    is_index = isinstance(target, Tensor) and target.dtype == torch.int64 and target.ndim == 1
    if not measures.are_of_classes or (is_index and num_classes > 0):
        return
    kind = type(model).__name__
    problem = f"`model.task` of {kind} is classification, whose targets are class indices [N], but the data's are"
    remedy = "another is of fedlit.tasks, such as Regression"
    if model.card is not None and model.card.tasks:
        remedy = f"{kind} is for nothing else"
    raise ValueError(f"{problem} {describe(target)}; {remedy}.")


def check_own_task(model: FederatedModule, measures: MetricSet, output: Any, target: Any, whose: str) -> None:
    """A loss and metrics that are not those of a classification are tried on the outputs for two samples."""
    kind = type(model).__name__
    task = task_of(model)
    shapes = f"outputs {describe(output)} of the {whose} with targets {describe(target)}"
    with refusing(f"`model`: `loss` of {kind} ({task.name}) must give one number, the mean over a batch, of {shapes}"):
        loss_of(model)(output, target).item()
    if measures.metrics:
        check_metrics(measures, move_data_to_device(task.measured(output, target), torch.device("cpu")), shapes)


def check_metrics(measures: MetricSet, given: tuple[Any, Any], what: str) -> None:
    """Every metric takes such outputs and targets and gives a number."""
    for name, metric in measures.metrics.items():
        with refusing(f"{measures.describe(name)} cannot score {what} by one number"):
            trial = metric.clone()
            trial.update(*given)
            float(trial.compute())


def check_clients(model: FederatedModule, data: FederatedData, fabric: Fabric, measures: MetricSet) -> None:
    """The networks of the first clients, one of each kind, are tried on two samples."""
    x, target = two_samples(data, fabric)
    num_classes = data.splits.num_classes
    check_targets(model, measures, target, num_classes)
    for trial, client in trials(model, data, fabric):
        _check_client(trial, client, (x, target), fabric, measures)
    if measures.are_of_classes:
        check_metrics(measures, (torch.eye(num_classes), torch.arange(num_classes)), f"{num_classes} classes")


def two_samples(data: FederatedData, fabric: Fabric) -> tuple[Any, Any]:
    """Inputs and targets, of the test set, on the device that trains."""
    x, y = move_data_to_device(next(iter(data.test_batches().first(2))), fabric.device)
    return convert_input(fabric, x), convert_input(fabric, y)


def trials(model: FederatedModule, data: FederatedData, fabric: Fabric) -> Iterator[tuple[FederatedModule, Client]]:
    """A copy of the method for one client of each kind among the first, in evaluation mode."""
    with refusing(f"`model`: {type(model).__name__} cannot be copied for clients"):
        trial = twin(model)  # building the clients' networks must not change the one that is about to train
    fabric.strategy.precision.convert_module(trial)
    trial.to(fabric.device)  # the model itself is moved later, and autocast is that of the device
    clients = range(min(data.num_clients, CHECKED_CLIENTS)) if data.only_client is None else [data.only_client]
    first_of_kind = {_kind_of(model, data.client(k)): k for k in reversed(clients)}
    with isolated(0):
        for k in sorted(first_of_kind.values()):
            trial.client = data.client(k)
            if is_overridden("configure_client", trial, FederatedModule):
                with refusing_logs(trial, "configure_client"):
                    trial.configure_client(trial.client)
                trial.to(device=fabric.device, dtype=trial.dtype)
            trial.eval()
            yield trial, trial.client


def _kind_of(model: FederatedModule, client: Client) -> str:
    """What a client's networks and optimiser are built by."""
    builds_own = is_overridden("configure_client", model, FederatedModule) and not has_common_networks(model, client)
    chosen = kind(for_client(None, getattr(model, "client_optimizers", None), client))
    return repr([client.num_classes, client.id if builds_own else "common", chosen])


@torch.no_grad()
def _check_client(
    model: FederatedModule, client: Client, samples: tuple[Any, Any], fabric: Fabric, measures: MetricSet
) -> None:
    """The client's network takes its samples and gives what the task needs, and its optimiser can be built."""
    x, target = samples
    inputs = f"of shape {list(x.shape[1:])}" if isinstance(x, Tensor) else describe(x)
    networks = {f"network of client {client.id}": model, "global model": model.global_model()}
    for whose, network in networks.items():
        with refusing(f"`model`: the {whose} cannot take inputs {inputs}"), autocast(fabric)():
            z = applied(network, x)
        if measures.are_of_classes:
            _check_classes(whose, client, z, batch_size(x, target))
        else:
            check_own_task(model, measures, z, target, whose)
    is_own = overridden(model, frozenset({"configure_optimizers"}))
    source = f"`model`: `configure_optimizers` of {type(model).__name__}" if is_own else "`model.optimizer`"
    parts = [part for part in model.modules() if isinstance(part, LightningModule)]
    trainer = LocalTrainer(fabric, model, client, Plan(Stage("trial"), seed=0), Means())
    with refusing(f"{source} of client {client.id}"), attached(parts, trainer):
        optimizers, _ = as_lists(model.configure_optimizers())
        check_number(model, optimizers)
        for optimizer in optimizers:
            check_settings(optimizer, model)


def _check_classes(whose: str, client: Client, output: Any, number: int) -> None:
    """A logit per class, of each of so many samples."""
    with refusing(f"`model`: the {whose}"):
        shape = list(CLASSES.output(output).shape)
    if client.data.only_client is not None and len(shape) == 2:
        set_num_classes(client.data, shape[1])
        client = client.data.client(client.id)
    if shape == [number, client.num_classes]:
        return
    wanted = f"the {whose} must give {client.num_classes} outputs, one per class of the data, got shape {shape[1:]}"
    remedy = "set its `num_classes`, or change its last layer"
    if len(shape) == 2 and shape[1] > client.num_classes and client.data.num_classes is None:
        remedy += f", or `data.num_classes: {shape[1]}` if no sample is of the highest classes"
    labels = client.data.describe_labels()
    if labels is None:
        raise ValueError(f"`model`: {wanted}; {remedy}.")
    raise ValueError(
        f"{labels}, but must be 0 to C - 1 for C classes: subtract {client.data.splits.lowest_class}. "
        f"If they are right, and no sample is of class 0, {wanted}; {remedy}."
    )


def layout_for(model: FederatedModule, data: FederatedData, fabric: Fabric, fast: bool) -> torch.memory_format:
    """Channels last in fast mode, where the networks of all kinds of clients run with it."""
    if not fast:
        return torch.contiguous_format
    x, _ = two_samples(data, fabric)
    for trial, _ in trials(model, data, fabric):
        lay_out(trial, torch.channels_last)
        try:
            with torch.no_grad(), autocast(fabric)():
                trial(x)
                applied(trial.global_model(), x)
        except Exception as error:  # a method may raise anything
            message = f"images of {type(model).__name__} keep their layout; a trial in that of fast mode: "
            warnings.warn(f"`trainer.fast`: {message}{first_line(error)}", Notice, stacklevel=2)
            return torch.contiguous_format
    return torch.channels_last
