"""One client's visit: train locally what is loaded, and take what travels and what stays.

A simulation, many processes or a real deployment need just this and `LiveModule.enter`.
"""

from collections.abc import Collection

import torch
from lightning.fabric import Fabric

from fedlit.aggregation import State, Upload
from fedlit.data.client import Client
from fedlit.engine.module.log_sinks import refused
from fedlit.engine.plan import Memory, Outcome, Plan, is_plain
from fedlit.engine.visits.training import Parts, structure_of, train
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage


def visit(
    fabric: Fabric,
    module: FederatedModule,
    client: Client,
    plan: Plan,
    shared: Collection[str],
    memory: Memory,
    constant: Collection[str] = (),
    parts: Parts | None = None,
) -> Outcome:
    """Train the client whose state is loaded; its upload holds what goes up (or is collected) and nothing else.

    What is constant is neither uploaded nor kept.
    """
    stage = plan.stage
    parts = parts or Parts(module, stage.module or module)
    trained = train(fabric, module, client, plan, memory, parts=parts)
    live = module.state_dict(keep_vars=True)
    if structure_of(live) != parts.structure:
        raise ValueError("local training changed names, shapes, dtypes or devices of the state.")
    state = {name: tensor.detach().clone() for name, tensor in live.items() if name not in constant}
    stays = _staying(module, live, stage, shared)
    own = {**memory.state, **{name: state[name] for name in state if name in stays}}
    upload = None
    if stage.upload == "aggregate":
        sent = {name: state[name] for name in shared}
        if module.upload_only:
            sent |= {name: tensor for name, tensor in state.items() if name.startswith(module.upload_only)}
        upload = Upload(client.id, sent, _weight(module, client))
    elif stage.upload == "collect":
        upload = Upload(client.id, _collected(module, state, memory))
        own = {name: tensor for name, tensor in own.items() if name not in upload.state}  # one copy is enough
    kept = {"personal": stays, "keep": state.keys(), "reset": ()}[plan.optimizer_state]
    momenta = {} if plan.optimizer_state == "reset" else trained.optimizer_state(module, kept)
    if not is_plain(momenta):
        raise ValueError("its optimiser keeps what is neither tensor, number nor string.")
    for tensor in live.values():  # gradients end with the training
        tensor.grad = None
    kept_memory = Memory(own, {stage.name: momenta} if momenta else {})
    return Outcome(
        upload,
        kept_memory,
        trained.logs,
        validation_logs=trained.validation_logs,
        skipped=trained.skipped,
        overflowed=trained.overflowed,
    )


def _weight(module: FederatedModule, client: Client) -> float:
    with refused(module, "client_weight"):
        return float(module.client_weight(client))


def _staying(module: FederatedModule, live: State, stage: Stage, shared: Collection[str]) -> set[str]:
    """Names of what this stage trains that neither travels, one way or both, nor is the server's own."""
    names: set[str] = set(live)
    if stage.module is not None:
        trained = {id(tensor) for tensor in stage.module.state_dict(keep_vars=True).values()}
        names = {name for name, tensor in live.items() if id(tensor) in trained}
    if stage.upload == "aggregate":
        names.difference_update(shared)
    elsewhere = module.server_only + module.download_only + module.upload_only
    return {name for name in names if not name.startswith(elsewhere)}


def _collected(module: FederatedModule, state: State, memory: Memory) -> State:
    """What the server is to keep; the very tensors of an earlier stage where nothing has changed since."""
    upload: State = {}
    for name, tensor in state.items():
        if name.startswith(module.collected):
            before = memory.state.get(name)
            upload[name] = tensor if before is None or not torch.equal(before, tensor) else before
    return upload
