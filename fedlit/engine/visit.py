"""One client's visit: load its state, train locally, and take what travels and what stays.

The core knows no engine: a simulation, many processes or a real deployment need just `enter` and `visit`. A process has
one live module; client states are swapped in and out of it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlit.aggregation import State, Upload
from fedlit.data.client import Client
from fedlit.engine.early_stopping import Best
from fedlit.engine.means import Means
from fedlit.engine.precision import autocast, has_scaler, renew_scaler
from fedlit.fast.step import Descent, prepare
from fedlit.methods.base import FederatedModule, copy_into
from fedlit.methods.stage import Stage
from fedlit.rng import derive, generator, isolated

OptimizerState = dict[str, dict[str, Any]]  # by name of the parameter
Uploads = Mapping[int, State]  # what the server has collected, by client id
KeepOptimizer = Literal["personal", "reset", "keep"]
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class Interrupted(Exception):
    """The run was asked to stop in the middle of a visit."""


@dataclass(frozen=True)
class Plan:
    """How a visit trains.

    Attributes:
        stage: The stage that it belongs to.
        seed: Of the run; the visit derives its own streams.
        epochs: Passes over the client's samples, unless `steps` is given.
        steps: Batches, however many passes they take.
        lr_factor: What the learning-rate schedule multiplies by in this round.
        optimizer_state: Kept between visits for `personal` parameters, for all (`keep`) or for none (`reset`).
        gradient_clip_val: Largest norm of the gradient; None does not clip.
        should_stop: Asked before every batch.
        after_epoch: Called after every epoch.
    """

    stage: Stage
    seed: int
    epochs: int = 1
    steps: int | None = None
    lr_factor: float = 1.0
    optimizer_state: KeepOptimizer = "personal"
    gradient_clip_val: float | None = None
    should_stop: Callable[[], bool] = bool
    after_epoch: Callable[[], object] = bool


@dataclass
class Memory:
    """What stays with a client between visits: its personal state, and of each stage's optimiser what goes with it."""

    state: State = field(default_factory=dict)
    optimizer: dict[str, OptimizerState] = field(default_factory=dict)


@dataclass
class Outcome:
    """What a visit brings: an upload if the stage exchanges, what stays with the client, means of what it logged."""

    upload: Upload | None
    memory: Memory
    logs: dict[str, float]


def shared_names(module: FederatedModule, batch_norm: Literal["average", "local"]) -> list[str]:
    """The entries of the state that travel; with `batch_norm: local`, BatchNorm layers stay at home."""
    norms = [(p, m) for p, m in module.named_modules() if isinstance(m, BATCH_NORMS)]
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


def train(
    fabric: Fabric, module: FederatedModule, client: Client, plan: Plan, memory: Memory, uploads: Uploads | None = None
) -> tuple[list[Optimizer], dict[str, float]]:
    """Run the local epochs of a stage on the live module: its optimisers, and the means of what it logged.

    Args:
        fabric: Device and precision.
        module: With the state that training starts from.
        client: Whose samples; also the server, which has those of the public pool.
        plan: How long, how fast.
        memory: Of the optimiser, from the last visit in this stage.
        uploads: What the server has collected, if it is the server that trains.
    """
    learner, stage = plan.stage.module or module, plan.stage
    module.client = learner.client = client = replace(client, samples=stage.samples)
    learner._log_sink, module.stage = (means := Means()), stage
    try:
        with isolated(derive(plan.seed, "visit", stage.name, client.round, client.id)):
            with autocast(fabric)():  # what it computes of frozen networks must round as training does
                if uploads is None:
                    module.on_client_start(client)
                else:
                    module.on_server_start(client, uploads)
            kept = memory.optimizer.get(stage.name, {})
            optimizers = _optimizers(fabric, learner, plan, _names(module) if kept else {}, kept)
            _train(fabric, learner, client, plan, optimizers)
            if uploads is None:
                module.on_client_end(client)
    finally:
        learner._log_sink, learner._fabric_optimizers = None, []
    return optimizers, means.result()


def _structure(state: State) -> dict[str, tuple]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in state.items()}


def _train(fabric: Fabric, learner: FederatedModule, client: Client, plan: Plan, optimizers: list[Optimizer]) -> None:
    # To look is several times faster than to set; but who has a `train` of its own wants it to be called.
    if any(not part.training or type(part).train is not nn.Module.train for part in learner.modules()):
        learner.train()
    order = generator(plan.seed, "batches", plan.stage.name, client.round, client.id)
    batches = client.train_batches(order, plan.stage.samples, plan.stage.public).to(learner.device)
    batches.indexed = learner.wants_index
    rule, best = plan.stage.early_stopping, None
    if rule is not None and len(client.val_batches().y):  # without validation samples there is nothing to watch
        best = Best(rule, fabric, learner, client)
    renew_scaler(fabric)
    renews = is_overridden("on_train_epoch_start", learner, FederatedModule)  # it may freeze layers, or change rates
    descend, step = None, 0
    for epoch in range(plan.epochs if plan.steps is None else plan.steps):  # an epoch has at least one step
        if best is not None and epoch % rule.check_every == 0 and best.exhausted():
            break
        learner.on_train_epoch_start()
        if descend is None or renews:
            descend = Descent(fabric, learner, optimizers, plan.gradient_clip_val)
        for batch in batches:
            if plan.should_stop():
                raise Interrupted
            descend(batch, step)
            step += 1
            if step == plan.steps:
                break
        learner.on_train_epoch_end()
        plan.after_epoch()
        if step == plan.steps:
            break
    if best is not None:
        best.exhausted()
        best.restore()


def _optimizers(
    fabric: Fabric, learner: FederatedModule, plan: Plan, names: dict[nn.Parameter, str], state: OptimizerState
) -> list[Optimizer]:
    """The learner's optimisers, with the state that was kept for them and this round's learning rate."""
    optimizers = as_list(learner.configure_optimizers())
    if learner.automatic_optimization and len(optimizers) != 1:
        raise ValueError(
            f"Automatic optimisation takes one optimiser, got {len(optimizers)}; see Lightning's manual one."
        )
    # Fused updates want gradients in the layout of their weights, and dense: a user's own step may do otherwise.
    is_dense = not any(getattr(part, "sparse", False) for part in learner.modules())
    may_fuse = learner.fast and learner.automatic_optimization and is_dense
    for optimizer in optimizers:
        prepare(optimizer, may_fuse)
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * plan.lr_factor
            for parameter in group["params"]:
                if names.get(parameter) in state:
                    optimizer.state[parameter] = _revived(state[names[parameter]], parameter)
    if has_scaler(fabric):
        wrapped = fabric.setup_optimizers(*optimizers)
        optimizers = list(wrapped) if isinstance(wrapped, tuple) else [wrapped]
    learner._fabric, learner._fabric_optimizers = fabric, optimizers  # what manual optimisation asks Lightning for
    return optimizers


def _revived(entry: dict[str, Any], parameter: nn.Parameter) -> dict[str, Any]:
    """A copy on the parameter's device and in its layout; a step counter stays where the optimiser made it."""

    def copied(name: str, value: Tensor) -> Tensor:
        if name == "step":
            return value.clone()
        if value.shape != parameter.shape:
            return value.to(parameter.device, copy=True)
        return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value)

    return {name: copied(name, value) if isinstance(value, Tensor) else value for name, value in entry.items()}


def as_list(configured: Any) -> list[Optimizer]:
    """The optimisers that `configure_optimizers` returned; schedules belong to `trainer.lr_schedule`."""
    configured = configured if isinstance(configured, list | tuple) else [configured]
    if not configured or not all(isinstance(optimizer, Optimizer) for optimizer in configured):
        raise ValueError(
            "`configure_optimizers` must return an optimiser or a list of them (a learning-rate schedule over rounds "
            f"is `trainer.lr_schedule`), got {configured!r}."
        )
    return list(configured)


def _names(module: nn.Module) -> dict[nn.Parameter, str]:
    return {parameter: name for name, parameter in module.named_parameters()}


def optimizer_state(module: nn.Module, optimizers: list[Optimizer], kept: Collection[str]) -> OptimizerState:
    """What optimisers hold of the parameters with these names."""
    if not any(optimizer.state for optimizer in optimizers):
        return {}
    names = _names(module)
    entries: Iterator = (entry for optimizer in optimizers for entry in optimizer.state.items())
    return {names[parameter]: dict(values) for parameter, values in entries if names.get(parameter) in kept}
