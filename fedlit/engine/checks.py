"""Checks at the door: what is wrong with an experiment is said before its first round, in the user's words."""

import re
from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor
from torchmetrics import Metric

from fedlit.aggregation import State
from fedlit.data import FederatedData
from fedlit.engine.lightning_hooks import check_hooks
from fedlit.engine.optimizers import as_list
from fedlit.engine.processes import ClientParallelStrategy
from fedlit.engine.visit_trainer import at_the_door
from fedlit.methods.base import FederatedModule, for_client, kind, twin
from fedlit.methods.stage import Stage
from fedlit.rng import isolated

CHECKED_CLIENTS = 50  # networks of so many clients are tried on a sample before the first round


def check_options(options: Mapping[str, Any]) -> None:
    """The numbers of a federation."""
    at_least_one = (
        "num_rounds",
        "min_clients",
        "eval_every_n_rounds",
        "save_every_n_rounds",
        "num_threads",
        "num_nodes",
    )
    at_least_one += ("local_epochs", "local_steps")
    for name in at_least_one:
        if options[name] is not None and options[name] < 1:
            raise ValueError(f"`trainer.{name}` must be at least 1, got {options[name]}.")
    if options["local_epochs"] is not None and options["local_steps"] is not None:
        raise ValueError("`trainer.local_epochs` and `trainer.local_steps` exclude each other; give one.")
    if not 0 < options["fraction_fit"] <= 1:
        raise ValueError(f"`trainer.fraction_fit` must lie in (0, 1], got {options['fraction_fit']}.")
    if not options["personal_memory"] >= 0:
        raise ValueError(f"`trainer.personal_memory` must be at least 0 gigabytes, got {options['personal_memory']}.")
    clip = options["gradient_clip_val"]
    if clip is not None and not (isfinite(clip) and clip > 0):
        raise ValueError(f"`trainer.gradient_clip_val` must be positive, got {clip}.")
    _check_monitor(options["monitor"], ["acc", "loss", *(options["metrics"] or {})])
    for client, epochs in (options["client_epochs"] or {}).items():
        if epochs < 1:
            raise ValueError(f"`trainer.client_epochs[{client}]` must be at least 1, got {epochs}.")


def _check_monitor(monitor: str | None, metrics: list[str]) -> None:
    """What is never measured would never be best."""
    metric, _, where = (monitor or "acc/global_on_own").partition("/")
    known = metric in metrics or where == "trained_on_train"
    if not known or not re.fullmatch(r"\w+_on_(pooled|own|unseen|train)", where):
        raise ValueError(
            "`trainer.monitor` must be metric/model_on_data, such as acc/global_on_pooled or loss/personal_on_own, "
            f"with a metric of {', '.join(metrics)}, got {monitor}."
        )


def make_fabric(accelerator: str, devices: int | str, num_nodes: int, precision: str) -> Fabric:
    """Fabric as the user's options have it; several processes share clients, not gradients."""
    several = num_nodes > 1 or str(devices) not in ("1", "auto")
    try:
        strategy = ClientParallelStrategy() if several else "auto"
        return Fabric(
            accelerator=accelerator, strategy=strategy, devices=devices, num_nodes=num_nodes, precision=precision
        )
    except Exception as error:  # Fabric raises many kinds
        given = f"`trainer.accelerator` {accelerator}, `trainer.devices` {devices}, `trainer.num_nodes` {num_nodes}"
        told = f"{given} with `trainer.precision` {precision} cannot be had here: {_first_line(error)}"
        raise ValueError(told) from error


def check_experiment(model: FederatedModule, data: FederatedData, options: Mapping[str, Any]) -> list[Stage]:
    """Method, data and federation together; the method's stages."""
    for name, value, wanted in (("model", model, FederatedModule), ("data", data, FederatedData)):
        if not isinstance(value, wanted):
            raise ValueError(f"`{name}` must be a {wanted.__name__}, got a {type(value).__name__}.")
    if options["min_clients"] > data.num_clients:
        raise ValueError(
            f"`trainer.min_clients` is {options['min_clients']}, but `data.num_clients` is {data.num_clients}."
        )
    own = {"trainer.client_epochs": options["client_epochs"]}
    choices = ("client_networks", "client_optimizers", "client_memes", "client_classes")
    own |= {f"model.{name}": getattr(model, name, None) for name in choices}
    for name, choices in own.items():
        _check_choices(name, choices, data.num_clients)
    stages = model.configure_stages()
    if not stages or len({stage.name for stage in stages}) < len(stages):
        raise ValueError(f"`configure_stages` of {type(model).__name__} must give stages of different names.")
    check_hooks(model, stages)
    measured = {"global", "trained", *(stage.reported_as for stage in stages if stage.reported_as)}
    if options["monitor"] and (which := options["monitor"].rpartition("/")[2].partition("_on_")[0]) not in measured:
        raise ValueError(f"`trainer.monitor` names the model {which!r}, but there are {', '.join(sorted(measured))}.")
    _check_trainable([stage for stage in stages if stage.side == "clients"], data)
    _check_opt_out(stages, data)
    for stage in stages:
        if stage.public != "no" and not data.public_pool:
            raise ValueError(f"Stage {stage.name!r} needs a public pool; set `data.public`, such as 0.8.")
        if stage.side == "server" and data.drop_last and len(data.public_pool) < data.batch_size:
            raise ValueError(f"`data.drop_last` leaves no batch of the pool in stage {stage.name!r}.")
    if any(not isinstance(value, Tensor) for value in model.state_dict().values()):
        raise ValueError(
            f"`model`: {type(model).__name__} has extra state that is no tensor; it could not be shared or saved."
        )
    _check_metrics(options["metrics"] or {}, data.images.num_classes)
    trial = twin(model)  # building the clients' networks must not change the one that is about to train
    x = next(iter(data.test_batches()))[0][:2].to(device=model.device, dtype=model.dtype)
    earlier, known = model.earlier_uploads(), set()
    for k in earlier:
        if k >= data.num_clients - data.unseen_clients or not data.assignment.opted_in[k].any():
            raise ValueError(f"`model.earlier` holds an upload of client {k}, who takes no part here or has opted out.")
    with isolated(0):
        for k in range(min(data.num_clients, CHECKED_CLIENTS)):
            if (chosen := _chosen(model, data, k)) not in known or k in earlier:
                _check_client(trial, data, k, x)
                _check_earlier(trial, k, earlier.get(k, {}))
            known.add(chosen)
    return stages


def _check_trainable(stages: list[Stage], data: FederatedData) -> None:
    """Somebody has a batch to train on, in every stage."""
    least = [data.batch_size_of(k) if data.drop_last else 1 for k in range(data.num_clients)]
    for stage in stages:
        parts = data.assignment.opted_in[: data.num_clients - data.unseen_clients]
        sizes = [np.count_nonzero(part) if stage.samples == "opted_in" else len(part) for part in parts]
        if not any(sizes):
            raise ValueError(f"No client may train in stage {stage.name!r}: all have opted out (see `data.opt_out`).")
        if not any(size >= batch for size, batch in zip(sizes, least, strict=False)):
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


def _check_metrics(metrics: Mapping[str, Metric], num_classes: int) -> None:
    """Every metric takes logits ``[N, C]`` and classes ``[N]`` and gives a number."""
    for name, metric in metrics.items():
        try:
            float(metric.clone()(torch.eye(num_classes), torch.arange(num_classes)))
        except Exception as error:  # a metric raises what it likes
            raise ValueError(
                f"`trainer.metrics.{name}` cannot score {num_classes} classes by one number: {_first_line(error)}"
            ) from error


def _check_choices(name: str, choices: Any, num_clients: int) -> None:
    """Choices per client name every client (a list) or existing ones (a mapping)."""
    if isinstance(choices, list) and len(choices) != num_clients:
        raise ValueError(f"`{name}` must have one entry per client, {num_clients}, got {len(choices)}.")
    if isinstance(choices, dict):
        for k in choices:
            if not 0 <= k < num_clients:
                raise ValueError(f"`{name}` names client {k}, but the clients are 0 to {num_clients - 1}.")


def _chosen(model: FederatedModule, data: FederatedData, k: int) -> str:
    """What was chosen for a client; two for whom it is equal need not both be tried."""
    client = data.client(k)
    names = [name for name in vars(model) if name.startswith("client_")]
    if names == ["client_optimizers"] and is_overridden("configure_client", model, FederatedModule):
        return str(k)  # who knows what it builds
    return repr([client.num_classes, *(kind(for_client(None, getattr(model, name), client)) for name in names)])


@torch.no_grad()
def _check_client(model: FederatedModule, data: FederatedData, k: int, x: Tensor) -> None:
    """The client's network takes its samples and gives a logit per class, and its optimiser can be built."""
    client = data.client(k)
    model.client = client
    model.configure_client(client)
    model.to(device=x.device, dtype=x.dtype)
    model.eval()  # a trial copy: nobody trains it
    networks = {f"network of client {k}": model, "global model": model.global_model()}
    for whose, network in networks.items():
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
    try:
        with at_the_door(model, client):
            as_list(model.configure_optimizers())
    except (ValueError, TypeError) as error:
        raise ValueError(f"`model.optimizer` of client {k}: {_first_line(error)}") from error


def _check_earlier(model: FederatedModule, k: int, upload: State) -> None:
    """What a client uploaded in an earlier run is of the network that it has now."""
    live = model.state_dict()
    if upload and (missing := [name for name in live if name.startswith(model.collected) and name not in upload]):
        raise ValueError(f"`model.earlier`: client {k} uploaded no {missing[0]!r}; was its aggregator another?")
    for name, tensor in upload.items():
        if name not in live or live[name].shape != tensor.shape:
            raise ValueError(f"`model.earlier` holds an upload of client {k} that its network cannot take: {name!r}.")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
