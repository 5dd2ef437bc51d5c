"""Lightning's hooks in a method: which of them a visit calls, and which a federation refuses by name.

A visit is a `fit`. docs/lightning.md has the whole table, and a test holds the two together.
"""

import inspect
from collections.abc import Collection
from functools import cache
from typing import Literal

from torchmetrics import Metric

from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage

Command = Literal["fit", "validate", "test", "predict", "adapt", "load"]

STEP_HOOKS = frozenset(
    {
        "on_train_batch_start",
        "on_train_batch_end",
        "on_before_zero_grad",
        "on_before_backward",
        "on_after_backward",
        "on_before_optimizer_step",
        "optimizer_step",
        "optimizer_zero_grad",
        "backward",
        "configure_gradient_clipping",
    }
)
VALIDATION_HOOKS = frozenset(
    {
        "validation_step",
        "on_validation_start",
        "on_validation_end",
        "on_validation_epoch_start",
        "on_validation_epoch_end",
        "on_validation_batch_start",
        "on_validation_batch_end",
        "on_validation_model_eval",
        "on_validation_model_train",
        "on_validation_model_zero_grad",
    }
)
VISIT_HOOKS = frozenset(
    {
        "on_fit_start",
        "on_fit_end",
        "on_train_start",
        "on_train_end",
        "on_train_epoch_start",
        "on_train_epoch_end",
        "lr_scheduler_step",
        "teardown",
    }
)
CALLED = STEP_HOOKS | VALIDATION_HOOKS | VISIT_HOOKS

_BUILT = "build networks in `__init__`, or a client's own in `configure_client`; prepare a visit in `on_fit_start`"
_SAMPLES = "samples are the clients' own and come from `data`"
_INPUTS = "evaluation would not pass through it; change inputs by `data.augmentation`, or in `forward`"
_SAVED = "a checkpoint holds the states of server and clients; what must be saved is a buffer of the method"
REFUSED = {
    "setup": _BUILT,
    "configure_model": _BUILT,
    "configure_sharded_model": _BUILT,
    "prepare_data": _SAMPLES,
    "train_dataloader": _SAMPLES,
    "val_dataloader": _SAMPLES,
    "test_dataloader": _SAMPLES,
    "predict_dataloader": _SAMPLES,
    "on_before_batch_transfer": _INPUTS,
    "transfer_batch_to_device": _INPUTS,
    "on_after_batch_transfer": _INPUTS,
    "configure_callbacks": "give callbacks of a federation by `trainer.callbacks`",
    "on_save_checkpoint": _SAVED,
    "on_load_checkpoint": _SAVED,
}

_MEASURED = "`fedlit {}` looks at `forward` alone; measure by `trainer.metrics`, or by `probe`"
_AROUND = ("start", "end", "epoch_start", "epoch_end", "batch_start", "batch_end", "model_eval")
OF_COMMANDS: dict[str, frozenset[str]] = {
    "test": frozenset({"test_step", "on_test_model_train", *(f"on_test_{moment}" for moment in _AROUND)}),
    "predict": frozenset({"predict_step", *(f"on_predict_{moment}" for moment in _AROUND)}),
}


def overridden(method: FederatedModule, hooks: frozenset[str]) -> frozenset[str]:
    """Those of the hooks that a method has of its own, by its class or hung on itself."""
    kind: type = type(method)
    return _of_class(kind, hooks) | (hooks & vars(method).keys())


@cache
def _of_class(kind: type, hooks: frozenset[str]) -> frozenset[str]:
    return frozenset(name for name in hooks if getattr(kind, name) is not getattr(FederatedModule, name))


def check_hooks(module: FederatedModule, stages: Collection[Stage], command: Command) -> None:
    """Refuse what a method overrides and a federation would not call, before the first round.

    Args:
        module: The method.
        stages: Its programme; what they train is looked at, too.
        command: What the federation is asked for.
    """
    trained = [stage.module or module for stage in stages]
    for part in {id(part): part for part in (module, *trained)}.values():
        _check_refused(part, command)
        _check_step(part)
    if not any(part is module for part in trained):
        _check_parent(module, trained)
    for name, part in module.named_modules():
        if isinstance(part, Metric) and part.state_dict():
            raise ValueError(
                f"`model`: the metric {name!r} of {type(module).__name__} has persistent state, which would travel and "
                "be averaged; a metric of a visit begins anew with each, so leave `persistent` at False."
            )


def _check_refused(part: FederatedModule, command: Command) -> None:
    kind = type(part).__name__
    for name in sorted(overridden(part, frozenset(REFUSED))):
        raise ValueError(f"`model`: {kind} overrides `{name}`, which a federation never calls: {REFUSED[name]}.")
    for name in sorted(overridden(part, OF_COMMANDS.get(command, frozenset()))):
        raise ValueError(f"`model`: {kind} overrides `{name}`, but {_MEASURED.format(command)}.")


def _check_step(part: FederatedModule) -> None:
    parameters = inspect.signature(part.training_step).parameters
    for name, instead in (("dataloader_iter", "take a `batch`"), ("optimizer_idx", "optimise manually")):
        if name in parameters:
            raise ValueError(f"`model`: `training_step` of {type(part).__name__} asks for `{name}`; {instead}.")


def _check_parent(module: FederatedModule, trained: list[FederatedModule]) -> None:
    for name in sorted(overridden(module, CALLED)):
        others = ", ".join(dict.fromkeys(type(part).__name__ for part in trained))
        raise ValueError(
            f"`model`: {type(module).__name__} overrides `{name}`, but its stages train {others}; override it there."
        )
