"""One client's visit: load its state, train locally, and take what travels and what stays.

The core knows no engine: a simulation, many processes or a real deployment need just `enter` and `visit`. A process has
one live module; client states are swapped in and out of it.
"""

from collections.abc import Collection
from typing import Literal

import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn

from fedlit.aggregation import State, Upload
from fedlit.data.client import Client
from fedlit.engine.optimizers import as_list, optimizer_state
from fedlit.engine.plan import Interrupted, KeepOptimizer, Memory, OptimizerState, Outcome, Plan
from fedlit.engine.training import Uploads, train
from fedlit.methods.base import FederatedModule, copy_into
from fedlit.rng import derive, isolated

__all__ = [  # others find here what has moved to rooms of its own
    "Interrupted",
    "KeepOptimizer",
    "Memory",
    "OptimizerState",
    "Outcome",
    "Plan",
    "Uploads",
    "as_list",
    "enter",
    "lay_out",
    "optimizer_state",
    "set_fast",
    "shared_names",
    "train",
    "visit",
]


def shared_names(module: FederatedModule, batch_norm: Literal["average", "local"]) -> list[str]:
    """The entries of the state that travel; with `batch_norm: local`, BatchNorm layers stay at home."""
    norms = [(p, m) for p, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    home = {f"{prefix}.{name}" for prefix, norm in norms for name in norm.state_dict()} if batch_norm == "local" else ()
    return [name for name in module.state_dict() if module.is_shared(name) and name not in home]


def set_fast(module: FederatedModule, fast: bool) -> None:
    """Let a method and its parts round otherwise where that is faster, or no longer."""
    was_fast = module.fast
    for part in module.modules():
        if isinstance(part, FederatedModule):
            part.fast = fast
    if fast or was_fast:
        lay_out(module, torch.channels_last if fast else torch.contiguous_format)


def lay_out(module: nn.Module, layout: torch.memory_format) -> None:
    """Hold kernels of images in a layout: on a CPU, channels last is faster for small convolutions."""
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.dim() == 4 and tensor.is_cpu:
            # Not `contiguous`: a kernel of one channel is so in both layouts, but its strides tell what comes out.
            tensor.data = tensor.data.to(memory_format=layout)


def enter(
    module: FederatedModule,
    client: Client,
    initial: State,
    server: State,
    personal: State,
    seed: int,
    prefer: Literal["server", "personal"],
) -> State:
    """Load a client's state in layers, initial below server and personal; `prefer` says which of these two wins.

    Returns:
        The live tensors, by name.
    """
    before = live = module.state_dict(keep_vars=True)
    module.client = client
    if is_overridden("configure_client", module, FederatedModule):
        with isolated(derive(seed, "client", client.id)):
            module.configure_client(client)
        module.to(device=module.device, dtype=module.dtype)
        if module.fast:
            lay_out(module, torch.channels_last)
        live = module.state_dict(keep_vars=True)
    top = {**server, **personal} if prefer == "personal" else {**personal, **server}
    # What configure_client did not rebuild still holds the last client's values.
    stale = {name: initial[name] for name, tensor in live.items() if name not in top and tensor is before.get(name)}
    copy_into(live, {**stale, **top})
    for tensor in live.values():
        tensor.grad = None
    return live


def visit(
    fabric: Fabric, module: FederatedModule, client: Client, plan: Plan, shared: Collection[str], memory: Memory
) -> Outcome:
    """Train the client whose state is loaded; its upload holds the shared (or collected) names and nothing else."""
    stage, structure = plan.stage, _structure(module.state_dict(keep_vars=True))
    optimizers, logs = train(fabric, module, client, plan, memory)
    live = module.state_dict(keep_vars=True)
    if _structure(live) != structure:
        raise ValueError("the visit changed names, shapes or dtypes of the state.")
    state = {name: tensor.detach().clone() for name, tensor in live.items()}
    part = live if stage.module is None else stage.module.state_dict(keep_vars=True)
    mine, travels = {id(tensor) for tensor in part.values()}, set(shared) if stage.upload == "aggregate" else set()
    candidates = {name for name, tensor in live.items() if id(tensor) in mine and name not in travels}
    stays = {name for name in candidates if not name.startswith(module.server_only)}
    kept = {"personal": stays, "keep": state.keys(), "reset": ()}[plan.optimizer_state]
    own = {**memory.state, **{name: state[name] for name in state if name in stays}}
    upload = None
    if stage.upload == "aggregate":
        upload = Upload(client.id, {name: state[name] for name in shared}, float(module.client_weight(client)))
    if stage.upload == "collect":  # the client has it, too, but one copy is enough
        collected = {n: t for n, t in state.items() if n.startswith(module.collected)}
        same = {n for n, t in collected.items() if n in memory.state and torch.equal(memory.state[n], t)}
        upload = Upload(client.id, {n: memory.state[n] if n in same else t for n, t in collected.items()})
        own = {name: tensor for name, tensor in own.items() if name not in upload.state}
    momenta = optimizer_state(module, optimizers, kept)
    return Outcome(upload, Memory(own, {stage.name: momenta} if momenta else {}), logs)


def _structure(state: State) -> dict[str, tuple]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}
