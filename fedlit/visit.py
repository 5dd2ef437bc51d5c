"""One client's visit: load its state, train locally, and take what travels and what stays.

The core knows no engine: a simulation, many processes or a real deployment need just `enter` and `visit`. A process has
one live module; client states are swapped in and out of it.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlit.aggregation import State, Upload
from fedlit.client import Client
from fedlit.evaluation import evaluate
from fedlit.methods.base import FederatedModule, Stage
from fedlit.precision import autocast, convert_input, has_scaler, renew_scaler
from fedlit.rng import derive, generator, isolated

OptimizerState = dict[str, dict[str, Any]]  # by name of the parameter
KeepOptimizer = Literal["personal", "reset", "keep"]


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
    """

    stage: Stage
    seed: int
    epochs: int = 1
    steps: int | None = None
    lr_factor: float = 1.0
    optimizer_state: KeepOptimizer = "personal"
    gradient_clip_val: float | None = None
    should_stop: Callable[[], bool] = bool


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
    norms = [(p, m) for p, m in module.named_modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)]
    home = {f"{prefix}.{name}" for prefix, norm in norms for name in norm.state_dict()} if batch_norm == "local" else ()
    return [name for name in module.state_dict() if module.is_shared(name) and name not in home]


def enter(
    module: FederatedModule,
    client: Client,
    initial: State,
    server: State,
    personal: State,
    seed: int,
    prefer: Literal["server", "personal"],
) -> None:
    """Load a client's state in layers, initial below server and personal; `prefer` says which of these two wins."""
    before = live = module.state_dict(keep_vars=True)
    module.client = client
    if is_overridden("configure_client", module, FederatedModule):
        with isolated(derive(seed, "client", client.id)):
            module.configure_client(client)
        live = module.to(device=module.device, dtype=module.dtype).state_dict(keep_vars=True)
    top = {**server, **personal} if prefer == "personal" else {**personal, **server}
    # What configure_client did not rebuild still holds the last client's values.
    stale = {name: initial[name] for name, tensor in live.items() if name not in top and tensor is before.get(name)}
    load(live, {**stale, **top})
    module.zero_grad()


@torch.no_grad()
def load(live: Mapping[str, Tensor], state: State) -> None:
    """Copy values into the live tensors of the same names."""
    names = [name for name in state if name in live]
    for name in names:
        if live[name].shape != state[name].shape:  # it would be broadcast
            raise ValueError(f"{name!r} is {tuple(live[name].shape)}, but its state is {tuple(state[name].shape)}.")
    if names:
        torch._foreach_copy_([live[name] for name in names], [state[name] for name in names])


def visit(
    fabric: Fabric, module: FederatedModule, client: Client, plan: Plan, shared: Collection[str], memory: Memory
) -> Outcome:
    """Train the client whose state is loaded; its upload holds the shared names and nothing else."""
    learner, structure = plan.stage.module or module, _structure(module)
    learner.client, learner._log_sink = client, (means := _Means())
    try:
        with isolated(derive(plan.seed, "visit", plan.stage.name, client.round, client.id)):
            module.on_client_start(client)
            optimizers = _optimizers(fabric, learner, plan, _names(module), memory.optimizer.get(plan.stage.name, {}))
            _train(fabric, learner, client, plan, optimizers)
            module.on_client_end(client)
    finally:
        learner._log_sink, learner._fabric_optimizers = None, []
    if _structure(module) != structure:
        raise ValueError("the visit changed names, shapes or dtypes of the state.")
    state = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    travels = set(shared) if plan.stage.exchange else set()
    mine = {id(tensor) for tensor in learner.state_dict(keep_vars=True).values()}
    candidates = {n for n, t in module.state_dict(keep_vars=True).items() if id(t) in mine and n not in travels}
    stays = {name for name in candidates if not name.startswith(module.server_only)}
    kept = {"personal": stays, "keep": state.keys(), "reset": ()}[plan.optimizer_state]
    upload = None
    if plan.stage.exchange:
        upload = Upload(client.id, {name: state[name] for name in shared}, float(module.client_weight(client)))
    own = {**memory.state, **{name: state[name] for name in state if name in stays}}
    momenta = {**memory.optimizer, plan.stage.name: _state_of(optimizers, _names(module), kept)}
    return Outcome(upload, Memory(own, {stage: m for stage, m in momenta.items() if m}), means.result())


def _structure(module: nn.Module) -> dict[str, tuple]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in module.state_dict().items()}


def _train(fabric: Fabric, learner: FederatedModule, client: Client, plan: Plan, optimizers: list[Optimizer]) -> None:
    learner.train()
    batches = client.train_batches(
        generator(plan.seed, "batches", plan.stage.name, client.round, client.id), plan.stage.split
    ).to(learner.device)
    batches.indexed = learner.wants_index
    watched = plan.stage.monitor and len(client.val_batches().y)  # without validation samples there is nothing to watch
    best = _Best(plan.stage, fabric, learner, client) if watched else None
    renew_scaler(fabric)
    context, step = autocast(fabric), 0
    for epoch in range(plan.epochs if plan.steps is None else plan.steps):  # an epoch has at least one step
        if best is not None and epoch % plan.stage.check_every == 0 and best.exhausted():
            break
        learner.on_train_epoch_start()
        for batch in batches:
            if plan.should_stop():
                raise Interrupted
            _step(fabric, learner, batch, step, optimizers, context, plan.gradient_clip_val)
            step += 1
            if step == plan.steps:
                break
        learner.on_train_epoch_end()
        if step == plan.steps:
            break
    if best is not None:
        best.exhausted()
        best.restore()


def _step(
    fabric: Fabric,
    learner: FederatedModule,
    batch: tuple[Tensor, Tensor],
    index: int,
    optimizers: list[Optimizer],
    context: Callable[[], AbstractContextManager],
    clip: float | None,
) -> None:
    if context is not nullcontext:
        batch = (convert_input(fabric, batch[0]), *batch[1:])
    with context():
        loss = learner.training_step(batch, index)
    if not learner.automatic_optimization or loss is None:
        return
    optimizer = optimizers[0]
    optimizer.zero_grad()
    fabric.backward(loss) if has_scaler(fabric) else loss.backward()
    if clip is not None and has_scaler(fabric):
        fabric.clip_gradients(learner, optimizer, max_norm=clip)
    elif clip is not None:
        torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], clip)
    optimizer.step()


def _optimizers(
    fabric: Fabric, learner: FederatedModule, plan: Plan, names: dict[nn.Parameter, str], state: OptimizerState
) -> list[Optimizer]:
    """The learner's optimisers, with the state that was kept for them and this round's learning rate."""
    optimizers = as_list(learner.configure_optimizers())
    if learner.automatic_optimization and len(optimizers) != 1:
        raise ValueError(
            f"Automatic optimisation takes one optimiser, got {len(optimizers)}; see Lightning's manual one."
        )
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * plan.lr_factor
            for parameter in group["params"]:
                if names.get(parameter) in state:
                    optimizer.state[parameter] = _revived(state[names[parameter]], parameter.device)
    if has_scaler(fabric):
        wrapped = fabric.setup_optimizers(*optimizers)
        optimizers = list(wrapped) if isinstance(wrapped, tuple) else [wrapped]
    learner._fabric, learner._fabric_optimizers = fabric, optimizers  # what manual optimisation asks Lightning for
    return optimizers


def _revived(entry: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """A copy on the parameter's device; a step counter stays where the optimiser made it."""
    tensors = {k: v for k, v in entry.items() if isinstance(v, Tensor)}
    copies = {k: v.clone() if k == "step" else v.to(device, copy=True) for k, v in tensors.items()}
    return {**entry, **copies}


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


def _state_of(optimizers: list[Optimizer], names: dict[nn.Parameter, str], kept: Collection[str]) -> OptimizerState:
    entries: Iterator = (entry for optimizer in optimizers for entry in optimizer.state.items())
    return {names[parameter]: dict(values) for parameter, values in entries if names.get(parameter) in kept}


class _Means:
    """Means of what a visit logs, without a synchronisation per step."""

    def __init__(self) -> None:
        self.sums: dict[str, tuple[Any, int]] = {}

    def __call__(self, name: str, value: Any) -> None:
        total, count = self.sums.get(name, (0.0, 0))
        self.sums[name] = (total + (value.detach() if isinstance(value, Tensor) else value), count + 1)

    def result(self) -> dict[str, float]:
        return {name: float(total) / count for name, (total, count) in self.sums.items()}


class _Best:
    """Early stopping on the client's own validation data; the best state is a copy, never the live tensors."""

    def __init__(self, stage: Stage, fabric: Fabric, learner: FederatedModule, client: Client) -> None:
        self.stage, self.fabric, self.learner, self.client = stage, fabric, learner, client
        self.value, self.checks, self.state = float("inf"), 0, {}

    def exhausted(self) -> bool:
        """Check once more; whether patience has run out."""
        scores = evaluate(self.fabric, self.learner, self.client.val_batches())
        value = scores["loss"] if self.stage.monitor == "loss" else -scores["acc"]
        self.checks += 1
        if value < self.value:
            self.value, self.checks = value, 0
            self.state = {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}
        self.learner.train()
        return self.checks >= self.stage.patience

    def restore(self) -> None:
        load(self.learner.state_dict(keep_vars=True), self.state)
