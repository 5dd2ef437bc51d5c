"""Whether the optimisers of a run that goes on can use what is kept of those before, tried on copies."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedlit.data.client import Client
from fedlit.engine.plan import OptimizerState
from fedlit.engine.states.state import FederationState
from fedlit.engine.visits.optimizers import as_list, parameter_names, revived
from fedlit.engine.visits.visit_trainer import at_the_door
from fedlit.methods.base import FederatedModule, twin
from fedlit.methods.stage import Stage
from fedlit.rng import isolated

TRIED_CLIENTS = 5  # who all have the same optimiser, unless `model.client_optimizers` says otherwise

Kept = Mapping[int, Mapping[str, OptimizerState]]  # by client and stage


def check_optimizers(
    state: FederationState, stage: Stage, kept: Kept, servers: Mapping[str, OptimizerState], path: str
) -> None:
    """Refuse a checkpoint whose optimiser states do not fit the optimisers of the stage that comes next.

    Args:
        state: Of the federation.
        stage: Of the next round.
        kept: Of clients' optimisers.
        servers: Of the server's.
        path: Of the checkpoint.
    """
    round = state.round + 1
    tried = {k: states[stage.name] for k, states in sorted(kept.items()) if states.get(stage.name)}
    whose = [(state.data.client(k, round), momenta) for k, momenta in list(tried.items())[:TRIED_CLIENTS]]
    if stage.side == "server" and servers.get(stage.name):
        whose.append((state.data.client(0, round), servers[stage.name]))
    for client, momenta in whose:
        problem = _misfit(state, stage, client, momenta)
        if problem is not None:
            raise ValueError(
                f"`model.optimizer` cannot go on from `--ckpt_path` {path}: {problem}; "
                "`--trainer.optimizer_state reset` forgets what was kept."
            )


def _misfit(state: FederationState, stage: Stage, client: Client, momenta: OptimizerState) -> str | None:
    """Why a step with what was kept is impossible, or would not use it."""
    try:
        optimizers, names = _built(state, stage, client)
        fresh, _ = _built(state, stage, client)
    except Exception:  # a method that builds them in a visit only; the visit will tell
        return None
    for optimizer, new in zip(optimizers, fresh, strict=True):
        kind = type(optimizer).__name__
        own = _after_a_step(new)
        before = _give(optimizer, momenta, names)
        if own is None or not before:  # it cannot be tried by itself, or begins anew
            continue
        if own and not before & own:
            return f"{kind} keeps {_listed(own)}, and what was kept is {_listed(before)}"
        if _after_a_step(optimizer) is None:
            return f"{kind} keeps {_listed(own)}, and cannot use what was kept, {_listed(before)}"
    return None


def _listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def _built(state: FederationState, stage: Stage, client: Client) -> tuple[list[Optimizer], dict[Tensor, str]]:
    """The optimisers of a visit in a copy of the method, and the names of what they train."""
    trial = twin(state.module)
    trial.client = client
    trial.stage = stage
    with isolated(0):
        trial.configure_client(client)
        learner = _counterpart(state.module, trial, stage)
        learner.client = client
        with at_the_door(learner, client, state.fabric):
            return as_list(learner.configure_optimizers()), parameter_names(trial)


def _counterpart(module: FederatedModule, trial: FederatedModule, stage: Stage) -> FederatedModule:
    """What the stage trains, in the copy."""
    for name, child in module.named_modules():
        if child is stage.module:
            found = trial.get_submodule(name)
            assert isinstance(found, FederatedModule)
            return found
    return trial


def _give(optimizer: Optimizer, kept: OptimizerState, names: dict[Tensor, str]) -> set[str]:
    """Put what was kept into an optimiser; the names of its parts."""
    found: set[str] = set()
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            values = kept.get(names.get(parameter, ""), {})
            if values:
                optimizer.state[parameter] = revived(values, parameter, group)
                found |= values.keys()
    return found


def _after_a_step(optimizer: Optimizer) -> set[str] | None:
    """Names of what an optimiser keeps, after a step without gradients; None if it cannot take one."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = torch.zeros_like(parameter)
    try:
        optimizer.step()
    except Exception:  # an optimiser raises what it likes
        return None
    states: list[dict[str, Any]] = list(optimizer.state.values())
    return {name for values in states for name, value in values.items() if value is not None}
