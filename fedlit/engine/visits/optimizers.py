"""The optimisers of a visit: as the method configures them, with what was kept for them and this round's rate."""

from collections.abc import Collection
from functools import partial
from typing import Any

import torch
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlit import bounds
from fedlit.engine.module.precision import mapped_tensors
from fedlit.engine.plan import OptimizerState, Plan
from fedlit.fast.sgd import prepare
from fedlit.methods.base import FederatedModule

STEPPED_AT_THE_DOOR = (  # PyTorch's own whose step does nothing but what their paper says
    torch.optim.SGD,
    torch.optim.Adam,
    torch.optim.AdamW,
    torch.optim.RMSprop,
    torch.optim.Adagrad,
    torch.optim.Adadelta,
    torch.optim.Adamax,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.ASGD,
    torch.optim.Rprop,
)
COUNTERS = ("step", "mu_product")  # PyTorch's names of what counts steps; NAdam has both
Configured = tuple[list[Optimizer], list[LRSchedulerConfig]]


def optimizers_of(learner: FederatedModule, plan: Plan, names: dict[Tensor, str], state: OptimizerState) -> Configured:
    """The learner's optimisers and schedulers, with the state that was kept for them and this round's learning rate."""
    optimizers, schedulers = as_lists(learner.configure_optimizers())
    check_number(learner, optimizers)
    # Fused updates want gradients in the layout of their weights, and dense: a user's own step may do otherwise.
    may_fuse = learner.fast and learner.automatic_optimization
    if may_fuse:
        may_fuse = not any(getattr(part, "sparse", False) for part in learner.modules())
    for optimizer in optimizers:
        prepare(optimizer, may_fuse and not _is_partly_kept(optimizer, names, state))
        for group in optimizer.param_groups:
            group["lr"] = group["lr"] * plan.lr_factor
            for parameter in group["params"] if state else ():
                if names.get(parameter) in state:
                    optimizer.state[parameter] = revived(state[names[parameter]], parameter, group)
    for config in schedulers:
        _scale(config.scheduler, plan.lr_factor)
    return optimizers, schedulers


def _is_partly_kept(optimizer: Optimizer, names: dict[Tensor, str], state: OptimizerState) -> bool:
    """Whether momenta of SGD go on for some parameters of a group and begin for others, which its fused form cannot."""
    if not state or type(optimizer) is not torch.optim.SGD:
        return False
    for group in optimizer.param_groups:
        kept = {names.get(parameter) in state for parameter in group["params"]}
        if len(kept) == 2:
            return True
    return False


def check_number(learner: FederatedModule, optimizers: list[Optimizer]) -> None:
    """One optimiser, unless the method steps them itself."""
    if learner.automatic_optimization and len(optimizers) != 1:
        raise ValueError(
            f"automatic optimisation takes one optimiser, got {len(optimizers)}; for several, set "
            "`self.automatic_optimization = False` and step them in `training_step`."
        )


def check_settings(optimizer: Optimizer, learner: nn.Module) -> None:
    """Numbers that can be right, and gradients that the optimiser can take."""
    for group in optimizer.param_groups:
        for name, value in group.items():
            for number in _numbers(name, value):
                bounds.check_number(name, number)
        if isinstance(
            optimizer, torch.optim.RMSprop
        ):  # which does not look itself: above 1 it takes roots of less than 0
            bounds.check_share("alpha", group["alpha"])
    gives_sparse = any(getattr(part, "sparse", False) for part in learner.modules())
    if isinstance(optimizer, torch.optim.SparseAdam) and not gives_sparse:
        raise ValueError("SparseAdam takes sparse gradients, and no layer gives them (as nn.Embedding(sparse=True)).")
    if type(optimizer) in STEPPED_AT_THE_DOOR and not gives_sparse:
        _try_a_step(optimizer)


def _try_a_step(optimizer: Optimizer) -> None:
    """With no gradient to speak of: what a device or a mode does not allow is said by the step alone."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for parameter in parameters:
        parameter.grad = None


def _numbers(name: str, value: Any) -> list[float]:
    """The numbers of a setting: of a learning rate as a tensor, of a pair of betas."""
    if name == "params":
        return []
    if isinstance(value, Tensor):
        value = value.tolist()
    values = value if isinstance(value, list | tuple) else [value]
    return [number for number in values if isinstance(number, int | float) and not isinstance(number, bool)]


def _scale(scheduler: Any, factor: float) -> None:
    """A scheduler of the visit starts from this round's rate."""
    if factor == 1.0:
        return
    for inner in getattr(scheduler, "_schedulers", ()):
        _scale(inner, factor)
    if hasattr(scheduler, "base_lrs"):
        scheduler.base_lrs = [rate * factor for rate in scheduler.base_lrs]


def revived(entry: dict[str, Any], parameter: nn.Parameter, group: dict[str, Any]) -> dict[str, Any]:
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


def as_list(configured: Any) -> list[Optimizer]:
    """The optimisers that `configure_optimizers` returned, without their schedulers."""
    return as_lists(configured)[0]


def as_lists(configured: Any) -> Configured:
    """Optimisers and schedulers of all the forms that Lightning takes from `configure_optimizers`.

    Example:
        >>> optimizer = torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=1.0)
        >>> optimizers, schedulers = as_lists({"optimizer": optimizer})
        >>> optimizers[0] is optimizer, schedulers
        (True, [])
    """
    optimizers, schedulers = _split(configured)
    if not optimizers or not all(isinstance(optimizer, Optimizer) for optimizer in optimizers):
        raise ValueError(
            "`configure_optimizers` must return an optimiser, a list of them, or one of Lightning's forms with a "
            f"scheduler of the visit (a schedule over rounds is `trainer.lr_schedule`), got {configured!r}."
        )
    configs = [_config(given, monitor) for given, monitor in schedulers]
    for config in configs:
        if not any(getattr(config.scheduler, "optimizer", None) is optimizer for optimizer in optimizers):
            raise ValueError("`configure_optimizers` returned a scheduler of an optimiser that it did not return.")
    return optimizers, configs


def _split(configured: Any) -> tuple[list[Any], list[tuple[Any, str | None]]]:
    """Optimisers, and schedulers with the metric that one may wait for."""
    if isinstance(configured, dict):
        configured = [configured]
    if not isinstance(configured, list | tuple):
        return [configured], []
    if len(configured) == 2 and isinstance(configured[0], list):
        given = configured[1] if isinstance(configured[1], list) else [configured[1]]
        return configured[0], [(scheduler, None) for scheduler in given]
    if configured and all(isinstance(entry, dict) for entry in configured):
        for entry in configured:
            _check_keys(entry)
        schedulers = [(entry["lr_scheduler"], entry.get("monitor")) for entry in configured if "lr_scheduler" in entry]
        return [entry.get("optimizer") for entry in configured], schedulers
    return list(configured), []


def _check_keys(entry: dict[str, Any]) -> None:
    known = ("optimizer", "lr_scheduler", "monitor")
    for name in entry:
        if name not in known:
            raise ValueError(f"`configure_optimizers` returned {name!r}; there are {', '.join(known)}.")


def _config(given: Any, monitor: str | None) -> LRSchedulerConfig:
    """Lightning's settings of a scheduler."""
    settings = dict(given) if isinstance(given, dict) else {"scheduler": given}
    known = [name for name in LRSchedulerConfig.__dataclass_fields__ if name != "reduce_on_plateau"]
    if "scheduler" not in settings or not settings.keys() <= set(known) | {"reduce_on_plateau"}:
        raise ValueError(f"A scheduler of `configure_optimizers` has {', '.join(known)}, got {', '.join(settings)}.")
    settings.setdefault("reduce_on_plateau", isinstance(settings["scheduler"], ReduceLROnPlateau))
    settings["monitor"] = settings.get("monitor") or monitor
    config = LRSchedulerConfig(**settings)
    if config.interval not in ("step", "epoch") or config.frequency < 1:
        raise ValueError(
            "A scheduler of `configure_optimizers` has an `interval` of step or epoch and a `frequency` of at least 1, "
            f"got {config.interval} and {config.frequency}."
        )
    if config.reduce_on_plateau and config.monitor is None:
        raise ValueError("ReduceLROnPlateau of `configure_optimizers` needs a `monitor`, the name of what is logged.")
    if config.reduce_on_plateau and config.interval == "step":
        raise ValueError("ReduceLROnPlateau of `configure_optimizers` has an `interval` of epoch, got step.")
    return config


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
