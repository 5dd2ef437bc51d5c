"""A run as plain tensors, numbers and strings, and back: what a checkpoint holds."""

from hashlib import sha256
from typing import Any

import torch

from fedlit.methods.base import Stage
from fedlit.run import Run
from fedlit.visit import Memory

FORMAT = 1


def fingerprint(run: Run, stages: list[Stage]) -> dict[str, Any]:
    """What must agree for a checkpoint to go on: method, seed, stages, clients, their data, shapes."""
    digest = sha256()
    for part in (*run.data.assignment.train, *run.data.assignment.val, *run.data.assignment.shared):
        digest.update(part.tobytes())
    return {
        "method": type(run.module).__name__,
        "stages": [stage.name for stage in stages],
        "seed": run.seed,
        "num_clients": run.data.num_clients,
        "shared state": _shapes(run.global_state),
        "partition": digest.hexdigest(),
    }


def take(run: Run, stages: list[Stage]) -> dict[str, Any]:
    """The content of a checkpoint after a round."""
    return {
        "format": FORMAT,
        "round": run.round,
        "global_state": _on_cpu(run.global_state),
        "personal_states": {k: _on_cpu(memory.state) for k, memory in run.memories.items()},
        "optimizer_states": {k: _on_cpu(memory.optimizer) for k, memory in run.memories.items()},
        "initial_state": _on_cpu({n: t for n, t in run.initial.items() if n not in run.global_state}),
        "last": run.last,
        "best": run.best,
        "fingerprint": fingerprint(run, stages),
    }


def restore(run: Run, content: dict[str, Any], path: str, stages: list[Stage], training: bool) -> None:
    """Go on from a checkpoint of the same experiment; to evaluate, only the shapes must agree."""
    theirs, ours = content.get("fingerprint", {}), fingerprint(run, stages)
    for key in ours if training else ("method", "num_clients", "shared state"):
        if theirs.get(key) != ours[key]:
            detail = "" if key in ("partition", "shared state") else f" ({theirs.get(key)} there, {ours[key]} here)"
            raise ValueError(f"`--ckpt_path` {path} is of another experiment: its {key} differs{detail}.")
    own = {name: tensor for name, tensor in run.initial.items() if name not in run.global_state}
    if _shapes(content["initial_state"]) != _shapes(own):
        raise ValueError(f"`--ckpt_path` {path} is of another experiment: its personal state differs.")
    device = run.fabric.device
    run.round, run.last, run.best = content["round"], content["last"], content["best"]
    run.global_state = {name: tensor.to(device) for name, tensor in content["global_state"].items()}
    run.initial |= {name: tensor.to(device) for name, tensor in content["initial_state"].items()}
    for k, state in content["personal_states"].items():
        on_device = {name: tensor.to(device) for name, tensor in state.items()}
        run.memories[k] = Memory(on_device, content["optimizer_states"][k])


def _shapes(state: dict[str, torch.Tensor]) -> dict[str, list[int]]:
    return {name: list(tensor.shape) for name, tensor in state.items()}


def _on_cpu(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return {key: _on_cpu(entry) for key, entry in value.items()} if isinstance(value, dict) else value
