"""A run as plain tensors, numbers and strings, and back: what a checkpoint holds."""

import warnings
from hashlib import sha256
from itertools import groupby
from typing import Any

import torch

from fedlit.engine.run import Run
from fedlit.engine.schedule import Schedule
from fedlit.engine.visit import Memory
from fedlit.methods.base import twin
from fedlit.records.checkpoint import FORMAT
from fedlit.rng import isolated

CHECKED_CLIENTS = 50  # building a network takes a moment


def fingerprint(run: Run, schedule: Schedule) -> dict[str, Any]:
    """What must agree for a checkpoint to go on: method, seed, stages, clients, their data, shapes."""
    digest = sha256(run.data.images.train_y.numpy().tobytes())
    digest.update(run.data.images.train_x[:: max(1, len(run.data.images.train_x) // 100)].numpy().tobytes())
    for part in (*run.data.assignment.train, *run.data.assignment.val, *run.data.assignment.opted_in):
        digest.update(part.tobytes())
    return {
        "method": type(run.module).__name__,
        "stages": [stage.name for stage in schedule.stages],
        "seed": run.seed,
        "num_clients": run.data.num_clients,
        "shared state": _shapes(run.global_state),
        "partition": digest.hexdigest(),
    }


def take(run: Run, schedule: Schedule) -> dict[str, Any]:
    """The content of a checkpoint after a round."""
    memories = {k: run.memories.peek(k) for k in run.memories}
    return {
        "format": FORMAT,
        "round": run.round,
        "stages": [schedule.stage(number).name for number in range(1, run.round + 1)],
        "global_state": _on_cpu(run.global_state),
        "personal_states": {k: _on_cpu(memory.state) for k, memory in memories.items()},
        "optimizer_states": {k: _on_cpu(memory.optimizer) for k, memory in memories.items()},
        "collected": {k: _on_cpu(state) for k, state in run.collected.items()},
        "server_optimizer": _on_cpu(run.server_memory.optimizer),
        "initial_state": _on_cpu({n: t for n, t in run.initial.items() if n not in run.global_state}),
        "last": run.last,
        "best": run.best,
        "fingerprint": fingerprint(run, schedule),
    }


def restore(run: Run, content: dict[str, Any], path: str, schedule: Schedule, training: bool) -> None:
    """Go on from a checkpoint of the same experiment; to evaluate, only the shapes must agree."""
    theirs, ours = content.get("fingerprint", {}), fingerprint(run, schedule)
    for key in ours if training else ("method", "num_clients", "shared state"):
        if theirs.get(key) != ours[key]:
            detail = "" if key in ("partition", "shared state") else f" ({theirs.get(key)} there, {ours[key]} here)"
            raise ValueError(f"`--ckpt_path` {path} is of another experiment: its {key} differs{detail}.")
    here = [schedule.stage(number).name for number in range(1, content["round"] + 1)]
    if training and content["stages"] != here[: len(schedule)]:
        raise ValueError(
            f"`--ckpt_path` {path} has done {_counted(content['stages'])}; with these options it would have been "
            f"{_counted(here[: len(schedule)])}: a stage that is over cannot be made longer or shorter."
        )
    if not training and theirs.get("partition") != ours["partition"]:
        warnings.warn(f"The data are dealt out otherwise than in the run of {path}.", stacklevel=2)
    own = {name: tensor for name, tensor in run.initial.items() if name not in run.global_state}
    if _shapes(content["initial_state"]) != _shapes(own):
        raise ValueError(f"`--ckpt_path` {path} is of another experiment: its personal state differs.")
    device = run.fabric.device
    run.round, run.last, run.best = content["round"], content["last"], content["best"]
    run.stage = next((s for s in schedule.stages if s.name in content["stages"][-1:]), None)
    run.global_state = {name: tensor.to(device, copy=True) for name, tensor in content["global_state"].items()}
    run.initial |= {name: tensor.to(device, copy=True) for name, tensor in content["initial_state"].items()}
    _check_personal(run, content["personal_states"], path)
    _check_personal(run, content["collected"], path)
    run.collected = {
        k: {n: t.to(device, copy=True) for n, t in state.items()} for k, state in content["collected"].items()
    }
    run.server_memory = Memory(optimizer=_copied(content["server_optimizer"]))
    for k, state in content["personal_states"].items():
        on_device = {name: tensor.to(device, copy=True) for name, tensor in state.items()}
        run.memories[k] = Memory(on_device, _copied(content["optimizer_states"][k]))


def _check_personal(run: Run, states: dict[int, dict[str, torch.Tensor]], path: str) -> None:
    """The networks of the first clients, as they are built here, take the states they had there."""
    trial = twin(run.module)
    for k in sorted(states)[:CHECKED_CLIENTS]:
        with isolated(0):
            trial.configure_client(run.data.client(k))
        shapes = _shapes(trial.state_dict())
        if any(shapes.get(name) != shape for name, shape in _shapes(states[k]).items()):
            raise ValueError(f"`--ckpt_path` {path} is of another experiment: the network of client {k} differs.")


def _counted(names: list[str]) -> str:
    return ", ".join(f"{len(list(same))} rounds of {name!r}" for name, same in groupby(names)) or "no rounds"


def _shapes(state: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in state.items()}


def _copied(value: Any) -> Any:
    """In memory: a checkpoint is a mapped file, which somebody may write over."""
    if isinstance(value, torch.Tensor):
        return value.clone()
    return {key: _copied(entry) for key, entry in value.items()} if isinstance(value, dict) else value


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return {key: _on_cpu(entry) for key, entry in value.items()} if isinstance(value, dict) else value
