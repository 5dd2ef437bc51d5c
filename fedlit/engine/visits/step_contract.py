"""What a `training_step` takes and gives, as in Lightning."""

import inspect
import warnings
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any
from weakref import WeakSet

from torch import Tensor

from fedlit.data.client import SERVER
from fedlit.engine.usage import UsageError
from fedlit.methods.base import FederatedModule
from fedlit.notices import Notice

_WARNED: WeakSet[FederatedModule] = WeakSet()  # of no loss; an attribute of theirs would end with local training


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


def warn_of_no_loss(learner: FederatedModule, client: int, num_steps: int) -> None:
    """Say once of a method that it has trained nothing: no step of a client, or of the server, had a loss.

    A step may be skipped by returning None, as under Lightning's Trainer, which warns, too.
    """
    if learner in _WARNED:
        return
    _WARNED.add(learner)
    who = "the server" if client == SERVER else f"client {client}"
    told = f"`training_step` of {type(learner).__name__} returned None in every step of {who} ({num_steps} in all)"
    warnings.warn(f"{told}, so nothing was trained; return a loss.", Notice, stacklevel=2)
