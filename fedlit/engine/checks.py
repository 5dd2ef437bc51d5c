"""Checks at the door: what is wrong with an experiment is said before its first round, in the user's words."""

from collections.abc import Iterator, Mapping
from typing import cast

import numpy as np
import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torchmetrics import Metric

from fedlit.data import FederatedData
from fedlit.data.client import Client
from fedlit.engine.lightning_hooks import check_hooks
from fedlit.engine.optimizers import as_list
from fedlit.engine.options import Options
from fedlit.engine.visit_trainer import at_the_door
from fedlit.methods.base import FederatedModule
from fedlit.methods.factories import check_choices, for_client, kind
from fedlit.methods.stage import Stage
from fedlit.methods.states import twin
from fedlit.rng import isolated

CHECKED_CLIENTS = 50  # networks of so many clients are tried on a sample before the first round


def check_experiment(model: FederatedModule, data: FederatedData, options: Options) -> list[Stage]:
    """Method, data and federation together; the method's stages."""
    for name, value, wanted in (("model", model, FederatedModule), ("data", data, FederatedData)):
        if not isinstance(value, wanted):
            raise ValueError(f"`{name}` must be a {wanted.__name__}, got a {type(value).__name__}.")
    if options.min_clients > data.num_clients:
        raise ValueError(
            f"`trainer.min_clients` is {options.min_clients}, but `data.num_clients` is {data.num_clients}."
        )
    check_choices("trainer.client_epochs", dict(options.client_epochs), data.num_clients)
    model.check(data)
    _check_state(model)
    stages = model.configure_stages()
    _check_stages(stages, model, options)
    check_hooks(model, stages)
    _check_trainable(stages, data)
    _check_opt_out(stages, data)
    _check_public(stages, data)
    _check_metrics(options.metrics, data.images.num_classes)
    _check_clients(model, data)
    return stages


def _check_state(model: FederatedModule) -> None:
    """What is shared and saved is tensors, and a client's network is a copy of it."""
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


def _check_clients(model: FederatedModule, data: FederatedData) -> None:
    """The networks of the first clients, one of each kind, are tried on two samples."""
    for trial, client, x in networks_to_try(model, data):
        _check_client(trial, client, x)


def networks_to_try(model: FederatedModule, data: FederatedData) -> Iterator[tuple[FederatedModule, Client, Tensor]]:
    """A copy of the method for one client of each kind among the first, in evaluation mode, and two samples."""
    trial = twin(model)  # building the clients' networks must not change the one that is about to train
    trial.eval()
    first_batch = next(iter(data.test_batches()))
    x = first_batch[0][:2].to(model.device, cast(torch.dtype, model.dtype))
    tried: set[str] = set()
    with isolated(0):
        for k in range(min(data.num_clients, CHECKED_CLIENTS)):
            client = data.client(k)
            chosen = _chosen(model, client)
            if chosen not in tried:
                trial.client = client
                trial.configure_client(client)
                trial.to(device=x.device, dtype=x.dtype)
                trial.eval()
                yield trial, client, x
            tried.add(chosen)


def _chosen(model: FederatedModule, client: Client) -> str:
    """What was chosen for a client; two for whom it is equal need not both be tried."""
    names = [name for name in vars(model) if name.startswith("client_")]
    if names == ["client_optimizers"] and is_overridden("configure_client", model, FederatedModule):
        return str(client.id)  # who knows what it builds
    choices = [kind(for_client(None, getattr(model, name), client)) for name in names]
    return repr([client.num_classes, *choices])


@torch.no_grad()
def _check_client(model: FederatedModule, client: Client, x: Tensor) -> None:
    """The client's network takes its samples and gives a logit per class, and its optimiser can be built."""
    _check_outputs(model, f"network of client {client.id}", client, x)
    _check_outputs(model.global_model(), "global model", client, x)
    try:
        with at_the_door(model, client):
            as_list(model.configure_optimizers())
    except (ValueError, TypeError) as error:
        raise ValueError(f"`model.optimizer` of client {client.id}: {_first_line(error)}") from error


def _check_outputs(network: nn.Module, whose: str, client: Client, x: Tensor) -> None:
    try:
        shape = list(network(x).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"`model`: the {whose} cannot take inputs of shape {list(x.shape[1:])}: {_first_line(error)}"
        ) from error
    if shape != [len(x), client.num_classes]:
        raise ValueError(
            f"`model`: the {whose} must give {client.num_classes} outputs, one per class of the data, "
            f"got shape {shape[1:]}; set its `num_classes`."
        )


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
