"""How what a data set gives reaches a network: a tensor, or a tree of tensors (dict, tuple, list).

A tensor is given as it is. A dict is given by names if `forward` takes them all (as those of Hugging Face's models do),
else as one dict. A tuple or list is spread if `forward` needs more than one argument, else it is one.
"""

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.func import functional_call

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NAMED = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def applied(network: nn.Module, x: Any, weights: Mapping[str, Tensor] | None = None) -> Any:
    """What a network gives for its inputs.

    Args:
        network: Of any kind.
        x: A tensor, or a tree of tensors.
        weights: Used in place of its own, by name; where one is missing, its own is.

    Example:
        >>> import torch
        >>> applied(nn.Bilinear(2, 3, 1), (torch.ones(4, 2), torch.ones(4, 3))).shape
        torch.Size([4, 1])
    """
    if isinstance(x, Tensor) and weights is None:
        return network(x)
    given, named = arguments(network, x)
    if weights is None:
        return network(*given, **named)
    return functional_call(network, dict(weights), given, named)


def arguments(network: nn.Module, x: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """What `forward` is called with: arguments by position, and by name."""
    forward = getattr(network.forward, "__func__", network.forward)
    is_bound = forward is not network.forward
    if isinstance(x, Mapping) and _takes(forward, is_bound, frozenset(x)):
        return (), dict(x)
    if isinstance(x, tuple | list) and _needs(forward, is_bound) > 1:
        return tuple(x), {}
    return (x,), {}


@cache
def _taken(forward: Callable[..., Any], is_bound: bool) -> tuple[inspect.Parameter, ...]:
    return tuple(inspect.signature(forward).parameters.values())[is_bound:]


def _takes(forward: Callable[..., Any], is_bound: bool, names: frozenset[Any]) -> bool:
    """Whether all of these are names of arguments."""
    parameters = _taken(forward, is_bound)
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return all(isinstance(name, str) for name in names)
    return names <= {parameter.name for parameter in parameters if parameter.kind in NAMED}


def _needs(forward: Callable[..., Any], is_bound: bool) -> int:
    """Arguments without a default."""
    parameters = _taken(forward, is_bound)
    return sum(1 for p in parameters if p.kind in POSITIONAL and p.default is p.empty)


def tensors(tree: Any) -> list[Tensor]:
    """The tensors of a tree, in order.

    Example:
        >>> import torch
        >>> [t.tolist() for t in tensors({"a": torch.tensor([1]), "b": (torch.tensor([2]), "text")})]
        [[1], [2]]
    """
    found: list[Tensor] = []
    apply_to_collection(tree, Tensor, found.append)
    return found


def batch_size(x: Any, y: Any) -> int:
    """Samples of a batch: as many as the first tensor of its targets, or of its inputs, has rows."""
    for tree in (y, x):
        for tensor in tensors(tree):
            if tensor.ndim:
                return len(tensor)
    return 1


def like(x: Any, reference: Tensor) -> Any:
    """Inputs on the device of a tensor, floats in its dtype; whole numbers, such as token ids, stay what they are.

    Example:
        >>> import torch
        >>> [t.dtype for t in like([torch.ones(1).double(), torch.tensor([3])], torch.ones(1))]
        [torch.float32, torch.int64]
    """

    def moved(tensor: Tensor) -> Tensor:
        if tensor.is_floating_point():
            return tensor.to(reference)
        return tensor.to(reference.device)

    return apply_to_collection(x, Tensor, moved)
