"""Checks at the door: what is wrong with an experiment is said before its first round, in the user's words."""

import warnings
from collections.abc import Iterator, Mapping
from inspect import signature

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torchmetrics import Metric

from fedlit.data import FederatedData
from fedlit.data.client import Client
from fedlit.engine.agreement import check_aggregator
from fedlit.engine.child_process import check_timeout
from fedlit.engine.lightning_hooks import Command, check_hooks, overridden
from fedlit.engine.log_sinks import refused
from fedlit.engine.modes import left_in_evaluation
from fedlit.engine.optimizers import as_list, check_number, check_settings
from fedlit.engine.options import Options
from fedlit.engine.precision import autocast, convert_input
from fedlit.engine.private_rounds import check_privacy
from fedlit.engine.visit_trainer import at_the_door
from fedlit.methods.base import FederatedModule
from fedlit.methods.factories import check_choices, for_client, kind
from fedlit.methods.stage import Stage
from fedlit.methods.states import twin
from fedlit.notices import Notice
from fedlit.rng import isolated

NETWORK_CHOICES = {
    "client_networks",
    "client_memes",
    "client_classes",
}  # what our methods build by
CHECKED_CLIENTS = 50  # networks of so many clients are tried on a sample before the first round
SELF_EXPLANATORY = (RuntimeError, ValueError, TypeError, IndexError, AttributeError)


def check_experiment(
    command: Command, model: FederatedModule, data: FederatedData, options: Options, fabric: Fabric
) -> list[Stage]:
    """Method, data and federation together, for what the federation is asked to do; the method's stages."""
    for name, value, wanted in (("model", model, FederatedModule), ("data", data, FederatedData)):
        if not isinstance(value, wanted):
            raise ValueError(f"`{name}` must be a {wanted.__name__}, got a {type(value).__name__}.")
    if options.min_clients > data.num_clients:
        raise ValueError(
            f"`trainer.min_clients` is {options.min_clients}, but `data.num_clients` is {data.num_clients}."
        )
    check_timeout(options.client_timeout, options.num_threads, fabric.device)
    check_choices("trainer.client_epochs", dict(options.client_epochs), data.num_clients)
    model.check(data)
    _check_state(model)
    stages = model.configure_stages()
    _check_stages(stages, model, options)
    check_hooks(model, stages, command)
    if command == "fit":
        _tell_modes(model)
        _tell_what_plays_no_part(model, stages, options)
        _tell_what_is_not_measured(model, stages, data)
    _check_trainable(stages, data)
    _check_opt_out(stages, data)
    _check_public(stages, data)
    check_aggregator(model, stages, data, options)
    if command == "fit":
        check_privacy(model, stages, data, options)
    _check_metrics(options.metrics, data.images.num_classes)
    _check_clients(model, data, fabric)
    return stages


def _tell_what_is_not_measured(model: FederatedModule, stages: list[Stage], data: FederatedData) -> None:
    """Rows that somebody may look for in vain."""
    without = sum(1 for own in data.assignment.val if not len(own))
    if without:
        told = f"{without} of {data.num_clients} clients have no validation samples (see `data.val_size`)"
        warnings.warn(f"{told}: nothing is measured on their own.", Notice, stacklevel=2)
    is_shared = any(stage.upload != "none" or stage.side == "server" for stage in stages)
    if data.unseen_clients and not is_shared:
        told = f"`data.unseen_clients`: {type(model).__name__} has no global model to evaluate on them"
        warnings.warn(f"{told}; `fedlit adapt` lets them join.", Notice, stacklevel=2)


def _tell_what_plays_no_part(model: FederatedModule, stages: list[Stage], options: Options) -> None:
    """How long visits are where every stage says so itself."""
    if any(stage.epochs is None and stage.side == "clients" for stage in stages):
        return
    given = [name for name in ("local_epochs", "local_steps", "client_epochs") if getattr(options, name)]
    for name in given:
        told = f"`trainer.{name}` plays no part: {type(model).__name__} has options of its own for epochs"
        warnings.warn(f"{told}.", Notice, stacklevel=2)


def _check_state(model: FederatedModule) -> None:
    """What is shared and saved is tensors, of shapes that are known, and a client's network is a copy of them."""
    for name, value in model.state_dict().items():
        if is_lazy(value):
            raise ValueError(f"`model`: {name!r} has no shape yet; give a lazy layer's sizes, or run it in `__init__`.")
    for path, part in model.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                raise ValueError(
                    f"`model`: `{path}.{name}` of {type(model).__name__} was computed from parameters and cannot be "
                    "copied for clients; in place of `weight_norm` or `prune` of `torch.nn.utils`, take "
                    "`torch.nn.utils.parametrizations`, or compute it in `forward`."
                )
    if any(not isinstance(value, Tensor) for value in model.state_dict().values()):
        raise ValueError(
            f"`model`: {type(model).__name__} has extra state that is no tensor; it could not be shared or saved."
        )


def _check_stages(stages: list[Stage], model: FederatedModule, options: Options) -> None:
    """Stages can be told apart, and one of them measures what is monitored."""
    names = {stage.name for stage in stages}
    if not stages or len(names) < len(stages):
        raise ValueError(f"`configure_stages` of {type(model).__name__} must give stages of different names.")
    if options.monitor is None:
        return
    measured = {"global", "trained", *(stage.reported_as for stage in stages if stage.reported_as)}
    monitored = options.monitor.rpartition("/")[2].partition("_on_")[0]
    if monitored not in measured:
        known = ", ".join(sorted(measured))
        raise ValueError(f"`trainer.monitor` names the model {monitored!r}, but there are {known}.")


def _tell_modes(model: FederatedModule) -> None:
    """Who has meant it knows; but some libraries hand their networks out in evaluation mode."""
    found = left_in_evaluation(model)
    if found:
        names = ", ".join(name or "all of it" for name in found[:3])
        if len(found) > 3:
            names += " ..."
        told = f"`model`: {type(model).__name__} is trained with parts in evaluation mode, as it was made: {names}."
        warnings.warn(told, Notice, stacklevel=2)


def _check_trainable(stages: list[Stage], data: FederatedData) -> None:
    """Somebody has a batch to train on, in every stage."""
    masks = data.assignment.opted_in[: data.num_clients - data.unseen_clients]
    for stage in stages:
        if stage.side == "server":
            continue
        sizes = [int(np.count_nonzero(mask)) if stage.samples == "opted_in" else len(mask) for mask in masks]
        if not any(sizes):
            raise ValueError(f"No client may train in stage {stage.name!r}: all have opted out (see `data.opt_out`).")
        if data.drop_last and not any(size >= data.batch_size_of(k) for k, size in enumerate(sizes)):
            raise ValueError(f"`data.drop_last` leaves no client a batch in stage {stage.name!r}.")


def _check_opt_out(stages: list[Stage], data: FederatedData) -> None:
    """What leaves a client must not know opted-out samples, neither directly nor by what it trained on them before."""
    if all(mask.all() for mask in data.assignment.opted_in):
        return
    seen_all = False
    for stage in stages:
        if stage.upload != "none" and (stage.samples == "all" or seen_all):
            raise ValueError(
                f"Stage {stage.name!r} would upload what opted-out samples have shaped (see `data.opt_out`); "
                "upload first, and train on all samples afterwards."
            )
        seen_all |= stage.samples == "all"


def _check_public(stages: list[Stage], data: FederatedData) -> None:
    """Who needs the public pool has one."""
    for stage in stages:
        if stage.public == "no":
            continue
        if not data.public_pool:
            raise ValueError(f"Stage {stage.name!r} needs a public pool; set `data.public`, such as 0.8.")
        if stage.side == "server" and data.drop_last and len(data.public_pool) < data.batch_size:
            raise ValueError(f"`data.drop_last` leaves no batch of the pool in stage {stage.name!r}.")


def _check_metrics(metrics: Mapping[str, Metric], num_classes: int) -> None:
    """Every metric takes logits ``[N, C]`` and classes ``[N]`` and gives a number."""
    for name, metric in metrics.items():
        try:
            float(metric.clone()(torch.eye(num_classes), torch.arange(num_classes)))
        except Exception as error:  # a metric raises what it likes
            raise ValueError(
                f"`trainer.metrics.{name}` cannot score {num_classes} classes by one number: {_first_line(error)}"
            ) from error


def _check_clients(model: FederatedModule, data: FederatedData, fabric: Fabric) -> None:
    """The networks of the first clients, one of each kind, are tried on two samples."""
    for trial, client, x in networks_to_try(model, data, fabric):
        _check_client(trial, client, x, fabric)


def networks_to_try(
    model: FederatedModule, data: FederatedData, fabric: Fabric
) -> Iterator[tuple[FederatedModule, Client, Tensor]]:
    """A copy of the method for one client of each kind among the first, in evaluation mode, and two samples."""
    trial = twin(model)  # building the clients' networks must not change the one that is about to train
    fabric.strategy.precision.convert_module(trial)
    trial.eval()
    first_batch = next(iter(data.test_batches()))
    x = convert_input(fabric, first_batch[0][:2].to(model.device))
    tried: set[str] = set()
    with isolated(0):
        for k in range(min(data.num_clients, CHECKED_CLIENTS)):
            client = data.client(k)
            chosen = _chosen(model, client)
            if chosen not in tried:
                trial.client = client
                if is_overridden("configure_client", trial, FederatedModule):
                    with refused(trial, "configure_client"):
                        trial.configure_client(client)
                    trial.to(device=x.device, dtype=trial.dtype)
                trial.eval()
                yield trial, client, x
            tried.add(chosen)


def _chosen(model: FederatedModule, client: Client) -> str:
    """What was chosen for a client; two for whom it is equal need not both be tried."""
    num_clients = client.data.num_clients
    choices = {name: value for name, value in vars(model).items() if _is_choice(name, value, num_clients)}
    builds_by_choice = NETWORK_CHOICES & choices.keys()
    if is_overridden("configure_client", model, FederatedModule) and not builds_by_choice:
        return str(client.id)  # who knows what it builds
    chosen = [kind(for_client(None, given, client)) for given in choices.values()]
    return repr([client.num_classes, *chosen])


def _is_choice(name: str, value: object, num_clients: int) -> bool:
    """Whether an attribute can be a choice per client; another that is called so is its author's own affair."""
    if not name.startswith("client_"):
        return False
    return value is None or isinstance(value, dict) or (isinstance(value, list) and len(value) == num_clients)


@torch.no_grad()
def _check_client(model: FederatedModule, client: Client, x: Tensor, fabric: Fabric) -> None:
    """The client's network takes its samples and gives a logit per class, and its optimiser can be built."""
    with autocast(fabric)():
        _check_outputs(model, f"network of client {client.id}", client, x)
        _check_outputs(model.global_model(), "global model", client, x)
    _check_optimizer(model, client, fabric)


def _check_optimizer(model: FederatedModule, client: Client, fabric: Fabric) -> None:
    try:
        with at_the_door(model, client, fabric):
            optimizers = as_list(model.configure_optimizers())
        check_number(model, optimizers)
        for optimizer in optimizers:
            check_settings(optimizer, model)
    except Exception as error:  # a method raises what it likes
        source = "`model.optimizer`"
        if overridden(model, frozenset({"configure_optimizers"})):
            source = f"`model`: `configure_optimizers` of {type(model).__name__}"
        raise ValueError(f"{source} of client {client.id}: {_first_line(error)}") from error


def _check_outputs(network: nn.Module, whose: str, client: Client, x: Tensor) -> None:
    try:
        z = network(x)
    except Exception as error:  # a network raises what it likes
        hint = ""
        if "dtype" in str(error):
            hint = "; see `trainer.precision`"
        told = f"the {whose} cannot take inputs of shape {list(x.shape[1:])}: {_first_line(error)}{hint}"
        raise ValueError(f"`model`: {told}") from error
    if not isinstance(z, Tensor):
        raise ValueError(f"`model`: the {whose} must give one tensor of logits, got a {type(z).__name__}.")
    shape = list(z.shape)
    if shape != [len(x), client.num_classes]:
        remedy = "change its last layer"
        if any("num_classes" in signature(type(part)).parameters for part in network.modules()):
            remedy = "set its `num_classes`"
        raise ValueError(
            f"`model`: the {whose} must give {client.num_classes} outputs, one per class of the data, "
            f"got shape {shape[1:]}; {remedy}."
        )


def _first_line(error: Exception) -> str:
    """What went wrong; with the kind of error where its text alone would not tell."""
    lines = str(error).splitlines()
    name = type(error).__name__
    if not lines:
        return name
    return lines[0] if isinstance(error, SELF_EXPLANATORY) else f"{name}: {lines[0]}"
