"""The networks and optimisers of the first clients, tried on two samples before the first round."""

from collections.abc import Iterator
from inspect import signature
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities import move_data_to_device
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from fedlit.data import FederatedData
from fedlit.data.client import Client
from fedlit.data.labels import told_labels
from fedlit.data.own_data import take_classes
from fedlit.engine.door.task_checks import check_own_task, check_targets, first_line, told_tree
from fedlit.engine.module.log_sinks import refused
from fedlit.engine.module.precision import autocast, convert_input
from fedlit.engine.scoring.measures import Measures
from fedlit.engine.scoring.outputs import CLASSES
from fedlit.engine.visits.lightning_hooks import overridden
from fedlit.engine.visits.optimizers import as_list, check_number, check_settings
from fedlit.engine.visits.visit_trainer import at_the_door
from fedlit.inputs import applied, batch_size
from fedlit.methods.base import FederatedModule
from fedlit.methods.factories import for_client, kind
from fedlit.methods.states import twin
from fedlit.rng import isolated

NETWORK_CHOICES = {"client_networks", "client_memes", "client_classes"}  # what our methods build by
CHECKED_CLIENTS = 50  # networks of so many clients are tried on a sample before the first round


def check_clients(model: FederatedModule, data: FederatedData, fabric: Fabric, measures: Measures) -> None:
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
                    with refused(trial, "configure_client"):
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
def _check_client(
    model: FederatedModule, client: Client, samples: tuple[Any, Any], fabric: Fabric, measures: Measures
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
        with at_the_door(model, client, fabric):
            optimizers = as_list(model.configure_optimizers())
        check_number(model, optimizers)
        for optimizer in optimizers:
            check_settings(optimizer, model)
    except Exception as error:  # a method raises what it likes
        source = "`model.optimizer`"
        if overridden(model, frozenset({"configure_optimizers"})):
            source = f"`model`: `configure_optimizers` of {type(model).__name__}"
        raise ValueError(f"{source} of client {client.id}: {first_line(error)}") from error


def _outputs(network: nn.Module, whose: str, x: Any) -> Any:
    try:
        return applied(network, x)
    except Exception as error:  # a network raises what it likes
        hint = ""
        if "dtype" in str(error):
            hint = "; see `trainer.precision`"
        inputs = f"of shape {list(x.shape[1:])}" if isinstance(x, Tensor) else told_tree(x)
        told = f"the {whose} cannot take inputs {inputs}: {first_line(error)}{hint}"
        raise ValueError(f"`model`: {told}") from error


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
    labels = told_labels(client.data)
    if labels is None:
        raise ValueError(f"`model`: {wanted}; {remedy}.")
    raise ValueError(
        f"{labels}, but must be 0 to C - 1 for C classes: subtract {client.data.splits.lowest_class}. "
        f"If they are right, and no sample is of class 0, {wanted}; {remedy}."
    )
