"""Frozen parameters: what a visit freezes or thaws is so until it ends; what is changed between visits stays.

What is shared and frozen when a run begins is *constant*: it is the same for all, so it is stored and sent once.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from fedlit.aggregation import State
from fedlit.engine.usage import UsageError
from fedlit.methods.base import FederatedModule


def frozen_names(module: nn.Module) -> list[str]:
    """Parameters that require no gradients."""
    return [name for name, parameter in module.named_parameters() if not parameter.requires_grad]


def constant_names(module: FederatedModule) -> list[str]:
    """Parameters that would travel, but require no gradients."""
    return [name for name in frozen_names(module) if module.is_shared(name)]


def trained_names(module: nn.Module, names: Iterable[str]) -> list[str]:
    """Of these, the floating parameters that train; one that has two names stands there under both."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    trained = {name for name, p in parameters.items() if p.requires_grad and p.is_floating_point()}
    return [name for name in names if name in trained]


def check_still_frozen(module: nn.Module, constant: Collection[str]) -> None:
    """Refuse to train what nobody would average."""
    if not constant:
        return
    frozen = set(frozen_names(module))
    for name in constant:
        if name not in frozen:
            raise UsageError(_told(name, "was thawed"))


def check_unchanged(state: Mapping[str, Tensor], constant: Mapping[str, Tensor], where: str) -> None:
    """Refuse what has changed although nobody is told of it any more."""
    for name, value in constant.items():
        if state[name] is not value and not torch.equal(state[name], value):
            raise UsageError(_told(name, f"was changed {where}"))


def _told(name: str, what: str) -> str:
    return (
        f"`model`: {name!r} required no gradients when the run began, so clients were sent it once, and it {what}; "
        "let it require gradients at first and freeze it in `on_round_start` of a callback, or make it a buffer."
    )


def without_frozen(kept: State, frozen: Collection[str], initial: Mapping[str, Tensor]) -> State:
    """What a client keeps, but for frozen parameters that are still as everybody's were at first."""
    same = {name for name in frozen if name in kept and name in initial and _is_same(kept[name], initial[name])}
    return {name: tensor for name, tensor in kept.items() if name not in same}


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


@contextmanager
def thawed_again(module: nn.Module) -> Iterator[None]:
    """Every parameter is trained, or not, afterwards as it was before."""
    before = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        for parameter, is_trained in before:
            if parameter.requires_grad != is_trained:
                parameter.requires_grad_(is_trained)
