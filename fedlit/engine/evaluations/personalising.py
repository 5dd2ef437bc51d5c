"""A client's model made its own before it is looked at: the method's `personalise`, on values that are forgotten."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from fedlit.data.client import Client
from fedlit.engine.module.freezing import thawed_again
from fedlit.engine.module.log_sinks import logging_to
from fedlit.engine.module.modes import modes_of, restore
from fedlit.engine.module.precision import autocast
from fedlit.engine.states.state import FederationState
from fedlit.engine.visits.training import structure_of
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.methods.states import copy_into
from fedlit.rng import derive, isolated


def personalises(learner: nn.Module) -> TypeGuard[FederatedModule]:
    """Whether a client's model is more than what is loaded."""
    return isinstance(learner, FederatedModule) and is_overridden("personalise", learner, FederatedModule)


def make_its_own(state: FederationState, stage: Stage, learner: nn.Module, k: int, round: int) -> None:
    """Let a method adapt the model of client k that is loaded, on all its samples: nothing of it leaves the client."""
    if not personalises(learner):
        return
    client = replace(state.data.client(k, round), samples="all")
    personalise(state.fabric, learner, client, derive(state.options.seed, "personalise", stage.name, round, k))


def personalise(fabric: Fabric, learner: FederatedModule, client: Client, seed: int) -> None:
    """Let a method adapt the client's model that is loaded; the next state that is loaded forgets it.

    Args:
        fabric: Precision.
        learner: With the client's values, in the modes that training begins with.
        client: Whose samples.
        seed: Of all that is drawn.
    """
    structure = structure_of(learner.state_dict(keep_vars=True))
    with (
        isolated(seed),
        torch.enable_grad(),
        autocast(fabric)(),
        logging_to(_nowhere, [learner]),
        thawed_again(learner),
    ):
        learner.personalise(client)
    live = learner.state_dict(keep_vars=True)
    if structure_of(live) != structure:
        raise ValueError("`personalise` changed names, shapes, dtypes or devices of the state.")
    for tensor in live.values():
        tensor.grad = None


@contextmanager
def personalised(fabric: Fabric, learner: FederatedModule, client: Client, seed: int) -> Iterator[None]:
    """Within, the learner is what `personalise` makes of it; afterwards it is what it was, so that it may train on."""
    if not personalises(learner):
        yield
        return
    before = {name: tensor.clone() for name, tensor in learner.state_dict().items()}
    modes = modes_of(learner)
    try:
        personalise(fabric, learner, client, seed)
        yield
    finally:
        copy_into(learner.state_dict(keep_vars=True), before)
        restore(modes)


def _nowhere(*given: Any, **named: Any) -> None:
    """What is logged in an evaluation is not recorded: a step that logs may be called there."""
