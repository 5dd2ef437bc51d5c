"""Checks at the door: what is wrong with an experiment is said before its first round, in the user's words."""

from collections.abc import Mapping
from math import isfinite
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.pytorch.cli import LRSchedulerCallable
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlit.data import FederatedData
from fedlit.methods.base import FederatedModule, Stage
from fedlit.rng import isolated
from fedlit.strategy import ClientParallelStrategy
from fedlit.visit import as_list

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
    clip = options["gradient_clip_val"]
    if clip is not None and not (isfinite(clip) and clip > 0):
        raise ValueError(f"`trainer.gradient_clip_val` must be positive, got {clip}.")
    for client, epochs in (options["client_epochs"] or {}).items():
        if epochs < 1:
            raise ValueError(f"`trainer.client_epochs[{client}]` must be at least 1, got {epochs}.")


def make_fabric(accelerator: str, devices: int | str, num_nodes: int, precision: str) -> Fabric:
    """Fabric as the user's options have it; several processes share clients, not gradients."""
    several = num_nodes > 1 or str(devices) not in ("1", "auto")
    try:
        strategy = ClientParallelStrategy() if several else "auto"
        return Fabric(
            accelerator=accelerator, strategy=strategy, devices=devices, num_nodes=num_nodes, precision=precision
        )
    except Exception as error:  # Fabric raises many kinds
        given = f"accelerator: {accelerator}, devices: {devices}, num_nodes: {num_nodes}, precision: {precision}"
        raise ValueError(f"`trainer` cannot have {given}. {_first_line(error)}") from error


def lr_factors(schedule: LRSchedulerCallable | None, rounds: int) -> list[float]:
    """What the schedule multiplies the learning rate by in each round of a stage.

    Example:
        >>> lr_factors(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5), 5)
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    if schedule is None:
        return [1.0] * rounds
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    try:
        stepper = schedule(optimizer)
    except (ValueError, TypeError) as error:
        raise ValueError(f"`trainer.lr_schedule`: {_first_line(error)}") from error
    if isinstance(stepper, ReduceLROnPlateau):
        raise ValueError("`trainer.lr_schedule` is stepped by rounds; ReduceLROnPlateau waits for a metric.")
    factors = []
    for _ in range(rounds):
        factors.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        stepper.step()
    return factors


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
    own |= {f"model.{name}": getattr(model, name, None) for name in ("client_networks", "client_optimizers")}
    for name, choices in own.items():
        _check_choices(name, choices, data.num_clients)
    stages = model.configure_stages()
    if not stages or len({stage.name for stage in stages}) < len(stages):
        raise ValueError(f"`configure_stages` of {type(model).__name__} must give stages of different names.")
    with isolated(0):
        for k in range(min(data.num_clients, CHECKED_CLIENTS)):
            _check_client(model, data, k)
    model.client = None
    return stages


def _check_choices(name: str, choices: Any, num_clients: int) -> None:
    """Choices per client name every client (a list) or existing ones (a mapping)."""
    if isinstance(choices, list) and len(choices) != num_clients:
        raise ValueError(f"`{name}` must have one entry per client, {num_clients}, got {len(choices)}.")
    if isinstance(choices, dict):
        for k in choices:
            if not 0 <= k < num_clients:
                raise ValueError(f"`{name}` names client {k}, but the clients are 0 to {num_clients - 1}.")


@torch.no_grad()
def _check_client(model: FederatedModule, data: FederatedData, k: int) -> None:
    """The client's network takes its samples and gives a logit per class, and its optimiser can be built."""
    client = data.client(k)
    model.client = client
    model.configure_client(client)
    x = next(iter(data.test_batches()))[0][:2].to(model.device)
    was_training = model.training
    model.eval()
    try:
        shape = list(model(x).shape)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:
        raise ValueError(
            f"`model`: the network of client {k} cannot take inputs of shape {list(x.shape[1:])}: {_first_line(error)}"
        ) from error
    finally:
        model.train(was_training)
    if shape != [len(x), client.num_classes]:
        raise ValueError(
            f"`model`: the network of client {k} must give {client.num_classes} outputs, one per class of the data, "
            f"got shape {shape[1:]}; set its `num_classes`."
        )
    try:
        as_list(model.configure_optimizers())
    except (ValueError, TypeError) as error:
        raise ValueError(f"`model.optimizer` of client {k}: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
