"""Lightning's hooks: which a federation calls, and which it refuses in a method before the first round."""

import inspect
from collections.abc import Collection
from functools import cache
from typing import Literal

from lightning.pytorch import LightningModule
from torchmetrics import Metric

from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage

Command = Literal["fit", "validate", "test", "predict", "adapt", "load"]


def _hooks(*prefixes: str) -> frozenset[str]:
    """Lightning's hooks whose names begin so."""
    return frozenset(name for name in dir(LightningModule) if name.startswith(prefixes))


STEP_HOOKS = frozenset(
    [
        "on_train_batch_start",
        "on_train_batch_end",
        "on_before_zero_grad",
        "on_before_backward",
        "on_after_backward",
        "optimizer_step",
        "optimizer_zero_grad",
        "backward",
        "configure_gradient_clipping",
    ]
)
VALIDATION_HOOKS = _hooks("on_validation_", "validation_step")
CALLED = (
    STEP_HOOKS
    | VALIDATION_HOOKS
    | _hooks("on_fit_", "on_train_")
    | {"on_before_optimizer_step", "lr_scheduler_step", "teardown"}
)

REFUSED = {
    **dict.fromkeys(
        ("setup", "configure_model", "configure_sharded_model"),
        "build networks in `__init__`, or a client's own in `configure_client`; prepare training in `on_fit_start`",
    ),
    **dict.fromkeys(
        ("prepare_data", "train_dataloader", "val_dataloader", "test_dataloader", "predict_dataloader"),
        "samples are the clients' own and come from `data`",
    ),
    **dict.fromkeys(
        ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"),
        "evaluation would not pass through it; change inputs by `data.augmentation`, or in `forward`",
    ),
    **dict.fromkeys(
        ("on_save_checkpoint", "on_load_checkpoint"),
        "a checkpoint holds the states of server and clients; what must be saved is a buffer of the method",
    ),
    "configure_callbacks": "give callbacks of a federation by `trainer.callbacks`",
}
OF_COMMANDS = {command: _hooks(f"on_{command}_", f"{command}_step") for command in ("test", "predict")}


def overridden(method: FederatedModule, hooks: frozenset[str]) -> frozenset[str]:
    """Those of the hooks that a method overrides, by its class or as an attribute of the object."""
    kind: type = type(method)
    return _of_class(kind, hooks) | (hooks & vars(method).keys())


def overrides(method: FederatedModule, hooks: frozenset[str]) -> bool:
    """Whether a method overrides any of the hooks."""
    return bool(overridden(method, hooks))


@cache
def _of_class(kind: type, hooks: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in hooks if getattr(kind, name) is not getattr(FederatedModule, name))


def check_hooks(module: FederatedModule, stages: Collection[Stage], command: Command) -> None:
    """Refuse what a method overrides and a federation would not call, before the first round."""
    trained = [stage.module or module for stage in stages]
    for part in {id(part): part for part in (module, *trained)}.values():
        _check_part(part, command)
    if not any(part is module for part in trained):
        others = ", ".join(dict.fromkeys(type(part).__name__ for part in trained))
        for name in sorted(overridden(module, CALLED)):
            raise ValueError(
                f"`model`: {type(module).__name__} overrides `{name}`, but its stages train {others}; override it "
                "there."
            )
    for name, part in module.named_modules():
        if isinstance(part, Metric) and part.state_dict():
            raise ValueError(
                f"`model`: the metric {name!r} of {type(module).__name__} has persistent state, which would be shared "
                "and averaged; a metric is reset for each local training, so leave `persistent` at False."
            )


def _check_part(part: FederatedModule, command: Command) -> None:
    kind = type(part).__name__
    for name in sorted(overridden(part, frozenset(REFUSED))):
        raise ValueError(f"`model`: {kind} overrides `{name}`, which a federation never calls: {REFUSED[name]}.")
    for name in sorted(overridden(part, OF_COMMANDS.get(command, frozenset()))):
        raise ValueError(
            f"`model`: {kind} overrides `{name}`, but `fedlit {command}` calls `forward` alone; measure by "
            "`trainer.metrics`, or by `probe`."
        )
    parameters = inspect.signature(part.training_step).parameters
    for name, instead in (("dataloader_iter", "take a `batch`"), ("optimizer_idx", "optimise manually")):
        if name in parameters:
            raise ValueError(f"`model`: `training_step` of {kind} takes `{name}`; {instead}.")
