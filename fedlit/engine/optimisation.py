"""Optimisers of a local training, and its steps: plain, or with Lightning's hooks."""

import warnings
from collections.abc import Callable, Collection, Mapping
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from lightning.pytorch.core.optimizer import _configure_optimizers, _configure_schedulers_automatic_opt
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer

from fedlit import bounds
from fedlit.engine.lightning_hooks import LocalTrainer, step_loss
from fedlit.engine.local_training_setup import LocalTrainingSetup
from fedlit.engine.plan import OptimizerState, Plan, UsageError
from fedlit.engine.precision import mapped_tensors
from fedlit.fast.steps import clear_of, prepare, update_of
from fedlit.methods.base import FederatedModule

COUNTERS = ("step", "mu_product")  # PyTorch's names of what counts steps; NAdam has both
Configured = tuple[list[Optimizer], list[LRSchedulerConfig]]


def optimizers_of(setup: LocalTrainingSetup, plan: Plan, names: dict[Tensor, str], state: OptimizerState) -> Configured:
    """The learner's optimisers and schedulers, with the state that was kept for them and this round's learning rate."""
    learner = setup.learner
    optimizers, schedulers = as_lists(learner.configure_optimizers())
    check_number(learner, optimizers)
    # Fused updates want gradients in the layout of their weights, and dense: a user's own step may do otherwise.
    may_fuse = learner.fast and learner.automatic_optimization and not setup.has_sparse_gradients
    for optimizer in optimizers:
        prepare(optimizer, may_fuse)
        for group in optimizer.param_groups:
            if plan.lr_factor != 1.0:
                group["lr"] = group["lr"] * plan.lr_factor
            for parameter in group["params"] if state else ():
                if names.get(parameter) in state:
                    optimizer.state[parameter] = restored_entry(state[names[parameter]], parameter, group)
    for config in schedulers:
        _scale(config.scheduler, plan.lr_factor)
    return optimizers, schedulers


def check_number(learner: FederatedModule, optimizers: list[Optimizer]) -> None:
    """One optimiser, unless the method steps them itself."""
    if learner.automatic_optimization and len(optimizers) != 1:
        raise ValueError(
            f"automatic optimisation takes one optimiser, got {len(optimizers)}; for several, set "
            "`self.automatic_optimization = False` and step them in `training_step`."
        )


def check_settings(optimizer: Optimizer, learner: nn.Module) -> None:
    """Refuse numbers that cannot be right, and what a step of PyTorch's own refuses, without a gradient to speak of."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            for number in value if name == "betas" else [value]:
                if type(number) in (int, float):
                    bounds.check_number(name, number)
    gives_sparse = any(getattr(part, "sparse", False) for part in learner.modules())
    if not _is_torchs(optimizer) or gives_sparse:
        return
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _is_torchs(optimizer: Optimizer) -> bool:
    """Whether it is one of PyTorch's whose step computes no gradients itself."""
    return type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)


def _scale(scheduler: Any, factor: float) -> None:
    """A scheduler of local training starts from this round's rate."""
    if factor == 1.0:
        return
    for inner in getattr(scheduler, "_schedulers", ()):
        _scale(inner, factor)
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]


def restored_entry(entry: dict[str, Any], parameter: nn.Parameter, group: dict[str, Any]) -> dict[str, Any]:
    """A copy of what an optimiser kept of a parameter, each tensor where a new optimiser would have made it.

    A counter of steps is on the CPU, where reading it does not wait for the device, unless the optimiser computes with
    it on the device.

    Args:
        entry: As it was kept; it may have been on another device since.
        parameter: Whose state it is.
        group: The parameter group that it is of, with the optimiser's settings.
    """
    device = parameter.device
    is_async = device.type == "cuda"  # what is kept is pinned there: the host need not wait for the copies
    counts_on_device = bool(group.get("capturable") or group.get("fused"))

    def copied(name: str, value: Tensor) -> Tensor:
        if name in COUNTERS and value.ndim == 0 and not counts_on_device:
            return value.to("cpu", copy=True)
        if value.shape != parameter.shape:
            return value.to(device, copy=True, non_blocking=is_async)
        return torch.empty_like(parameter, dtype=value.dtype, requires_grad=False).copy_(value, non_blocking=is_async)

    # A list is LBFGS's history, to which it appends.
    return {name: mapped_tensors(partial(copied, name), value) for name, value in entry.items()}


def as_lists(configured: Any) -> Configured:
    """Optimisers and schedulers of all the forms that Lightning takes from `configure_optimizers`.

    Example:
        >>> optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
        >>> optimizers, schedulers = as_lists({"optimizer": optimizer})
        >>> optimizers[0] is optimizer, schedulers
        (True, [])
    """
    if isinstance(configured, Optimizer):
        return [configured], []
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)  # of settings that Lightning would ignore
        try:
            optimizers, schedulers, monitor = _configure_optimizers(configured)
            configs = _configure_schedulers_automatic_opt(schedulers, monitor)
        except (MisconfigurationException, RuntimeWarning) as error:
            raise ValueError(" ".join(str(error).split())) from error
    for config in configs:
        if not any(getattr(config.scheduler, "optimizer", None) is optimizer for optimizer in optimizers):
            raise ValueError("`configure_optimizers` returned a scheduler of an optimiser that it did not return.")
        if config.reduce_on_plateau and config.interval == "step":
            raise ValueError("ReduceLROnPlateau of `configure_optimizers` has an `interval` of epoch, got step.")
    return optimizers, configs


def parameter_names(module: nn.Module) -> dict[Tensor, str]:
    """Names by parameter."""
    return {parameter: name for name, parameter in module.named_parameters()}


def optimizer_state(module: nn.Module, optimizers: list[Optimizer], kept: Collection[str]) -> OptimizerState:
    """What optimisers hold of the parameters with these names."""
    if not kept or not any(optimizer.state for optimizer in optimizers):
        return {}
    names = parameter_names(module)
    found: OptimizerState = {}
    for optimizer in optimizers:
        for parameter, values in optimizer.state.items():
            if names.get(parameter) in kept:
                found[names[parameter]] = dict(values)
    return found


def forward_of(setup: LocalTrainingSetup) -> Callable[[Any, int], Any]:
    """`training_step`, in the precision of the federation and with as many arguments as it takes."""
    step: Callable[..., Any] = setup.learner.training_step
    context = setup.autocast
    takes_number = setup.takes_batch_idx
    if takes_number and context is nullcontext:
        return step

    def forward(batch: Any, batch_idx: int) -> Any:
        with context():
            return step(batch, batch_idx) if takes_number else step(batch)

    return forward


class PlainStep:
    """Steps of a method that overrides no hooks around them but `on_before_optimizer_step`.

    Args:
        trainer: Of the local training; it has one optimiser.
        setup: Of the method.

    Attributes:
        had_loss: Whether any step had a loss.
        had_none: Whether any step had none.
    """

    def __init__(self, trainer: LocalTrainer, setup: LocalTrainingSetup) -> None:
        self.trainer = trainer
        self.fabric = trainer.fabric
        self.optimizer = trainer.optimizers[0]
        self.clip = trainer.gradient_clip_val
        self.is_scaled = setup.is_scaled
        self.forward = forward_of(setup)
        self.hook = setup.learner.on_before_optimizer_step if setup.has_update_hook else None
        self.before_update = self._before_update if self.hook is not None or self.clip is not None else None
        self.clear = clear_of(self.optimizer)
        self.update = update_of(self.optimizer)
        self.had_loss = False
        self.had_none = False

    def __call__(self, batch: tuple[Any, ...], batch_idx: int) -> bool:
        """One batch; whether the epoch goes on after it."""
        result = self.forward(batch, batch_idx)
        loss = result if isinstance(result, Tensor) else step_loss(result)
        if loss is None:
            self.had_none = True
        else:
            self.had_loss = True
            self.clear()
            if self.is_scaled:
                self._scaled_step(loss)
            else:
                loss.backward()
                if self.before_update is not None:
                    self.before_update()
                self.update()
        self.trainer.global_step += 1
        return True

    def _before_update(self) -> None:
        if self.hook is not None:
            self.hook(self.optimizer)
        if self.clip is not None:
            for group in self.optimizer.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], self.clip)

    def _scaled_step(self, loss: Tensor) -> None:
        """With a gradient scaler, as Fabric has it."""
        self.fabric.backward(loss)
        if self.before_update is not None:
            self.fabric.strategy.precision.unscale_gradients(self.optimizer)
            self.before_update()
        self.fabric.strategy.optimizer_step(self.optimizer)

    def after_epoch(self) -> None:
        """Nothing waits for the end of an epoch."""


def wants_hooks(setup: LocalTrainingSetup, trainer: LocalTrainer) -> bool:
    """Whether a step is more than forward, backward and update."""
    if setup.has_step_hooks or trainer.lr_scheduler_configs or not setup.learner.automatic_optimization:
        return True
    optimizer = trainer.optimizers[0]
    # Others may call the closure again, or look at gradients before it: under the Trainer, the step computes them.
    return not _is_torchs(optimizer) or bool(optimizer._optimizer_step_pre_hooks)


class HookedStep:
    """Steps with every hook of Lightning's.

    Args:
        trainer: Of the local training; it has the optimisers and their schedulers.
        setup: Of the method.
        num_batches: Of an epoch.

    Attributes:
        had_loss: As of `PlainStep`, unless the optimisation is manual.
        had_none: Likewise.
    """

    def __init__(self, trainer: LocalTrainer, setup: LocalTrainingSetup, num_batches: int) -> None:
        self.learner = setup.learner
        self.trainer = trainer
        self.num_batches = num_batches
        self.forward = forward_of(setup)
        self.had_loss = False
        self.had_none = False

    def __call__(self, batch: tuple[Any, ...], batch_idx: int) -> bool:
        """One batch; whether the epoch goes on after it."""
        is_skipped = self.learner.on_train_batch_start(batch, batch_idx) == -1
        outputs: dict[str, Any] = {}
        if is_skipped:
            pass
        elif self.learner.automatic_optimization:
            outputs = self._automatic(batch, batch_idx)
        else:
            outputs = self._manual(batch, batch_idx)
        self._update_rates("step", batch_idx)
        if is_skipped or batch_idx + 1 == self.num_batches:
            self._update_rates("epoch", self.trainer.current_epoch)
        if not is_skipped:
            self.learner.on_train_batch_end(outputs, batch, batch_idx)  # type: ignore[arg-type]
        return not is_skipped

    def _manual(self, batch: tuple[Any, ...], batch_idx: int) -> dict[str, Any]:
        result = self.forward(batch, batch_idx)
        if result is None:
            return {}
        outputs = dict(result) if isinstance(result, Mapping) else {"loss": result}
        if "loss" in outputs:
            outputs["loss"] = outputs["loss"].detach()
        return outputs

    def _automatic(self, batch: tuple[Any, ...], batch_idx: int) -> dict[str, Any]:
        learner = self.learner
        trainer = self.trainer
        optimizer = trainer.optimizers[0]
        outputs: dict[str, Any] = {}

        def closure() -> Tensor | None:
            outputs.clear()
            result = self.forward(batch, batch_idx)
            loss = step_loss(result)
            if loss is None:
                self.had_none = True
            else:
                self.had_loss = True
            learner.on_before_zero_grad(optimizer)
            learner.optimizer_zero_grad(trainer.current_epoch, batch_idx, optimizer)
            if loss is None:
                return None
            trainer.strategy.backward(loss, optimizer)
            outputs.update(result if isinstance(result, Mapping) else {})
            outputs["loss"] = loss.detach().clone()
            return outputs["loss"]

        wrapped = trainer.strategy._lightning_optimizers[0]
        learner.optimizer_step(trainer.current_epoch, batch_idx, wrapped, closure)
        trainer.global_step += 1
        return outputs

    def _update_rates(self, interval: str, number: int, on_plateau: bool = False) -> None:
        if not self.learner.automatic_optimization:
            return  # it steps its schedulers itself
        for config in self.trainer.lr_scheduler_configs:
            is_due = config.interval == interval and (number + 1) % config.frequency == 0
            if is_due and config.reduce_on_plateau == on_plateau:
                value = self._monitored(config.monitor, config.strict) if on_plateau else None
                if value is not None or not on_plateau:
                    self.learner.lr_scheduler_step(config.scheduler, value)

    def _monitored(self, name: str | None, is_strict: bool) -> Tensor | None:
        known = self.trainer.callback_metrics
        if name not in known and is_strict:
            raise UsageError(
                f"`configure_optimizers`: ReduceLROnPlateau waits for {name!r}, which was not logged; "
                f"there are {', '.join(known) or 'none'}."
            )
        return known.get(str(name))

    def after_epoch(self) -> None:
        """Schedules that wait for a value have it now."""
        self._update_rates("epoch", self.trainer.current_epoch, on_plateau=True)
