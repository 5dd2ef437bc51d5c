"""In which layout images are computed: channels last is faster on a CPU, but a method may count on the ordinary one.

`x.view` needs numbers in one order, which is not that of channels last. Parameters keep the ordinary layout in any
case; what a network computes in its `forward`, and a step of the user's own with it, is tried on two samples.
"""

import warnings
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from fedlit.data import FederatedData
from fedlit.data.client import Client
from fedlit.engine.door.network_checks import networks_to_try, two_samples
from fedlit.engine.door.task_checks import first_line
from fedlit.engine.module.log_sinks import noted
from fedlit.engine.module.precision import autocast
from fedlit.engine.visits.step_contract import loss_of, takes_batch_idx
from fedlit.engine.visits.visit_trainer import at_the_door
from fedlit.fast.memory import lay_out
from fedlit.inputs import applied
from fedlit.methods.base import FederatedModule
from fedlit.notices import Notice


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
        except Exception as error:  # a method raises what it likes
            told = f"images of {type(model).__name__} keep their layout; a trial in that of fast mode: "
            warnings.warn(f"`trainer.fast`: {told}{first_line(error)}", Notice, stacklevel=2)
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
    """A step of the user's own on a copy of the method, as in a visit, and its gradients."""
    parts = [part for part in trial.modules() if isinstance(part, FederatedModule) and not _is_known(part)]
    if not parts:
        return
    if parts != [trial]:
        raise ValueError(f"{type(parts[-1]).__name__}, a part of it, has steps of its own, which are not tried.")
    batch = (*samples, torch.arange(2, device=fabric.device)) if trial.wants_index else samples
    with at_the_door(trial, client, fabric), noted(trial):
        trial.on_client_start(client)
        given = (batch, 0) if takes_batch_idx(trial.training_step) else (batch,)
        result = trial.training_step(*given)  # type: ignore[arg-type, call-arg]
        loss = result if isinstance(result, Tensor) else loss_of(result)
        if trial.automatic_optimization and loss is not None:
            loss.backward()
