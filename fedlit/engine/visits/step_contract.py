"""What a `training_step` takes and gives, as in Lightning."""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from torch import Tensor

from fedlit.engine.usage import UsageError


def takes_batch_idx(step: Callable[..., Any]) -> bool:
    """Whether a step wants the number of its batch, too: a second argument of any name.

    Example:
        >>> takes_batch_idx(lambda batch: None), takes_batch_idx(lambda batch, i: None)
        (False, True)
    """
    function = getattr(step, "__func__", step)
    return _num_arguments(function) - (function is not step) >= 2


@cache
def _num_arguments(function: Callable[..., Any]) -> float:
    parameters = inspect.signature(function).parameters.values()
    if any(parameter.kind is parameter.VAR_POSITIONAL for parameter in parameters):
        return float("inf")
    return sum(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters)


def loss_of(result: Any) -> Tensor | None:
    """The loss in what a step returns: itself, one under "loss", or None to skip the update."""
    if result is None or isinstance(result, Tensor):
        return result
    if isinstance(result, Mapping) and isinstance(result.get("loss"), Tensor):
        return result["loss"]
    hint = ""
    if isinstance(result, tuple):  # (loss, {...}), as other libraries have it
        hint = "; what is beside the loss goes into that mapping, or to `self.log`"
    raise UsageError(
        "`training_step` must return a loss, a mapping with one under 'loss', or None, as under the Trainer, got a "
        f"{type(result).__name__}{hint}."
    )
