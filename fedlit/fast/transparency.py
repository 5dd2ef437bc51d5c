"""Where nothing but its steps can happen when a network is run.

Every part is a layer of PyTorch's or a user's module whose `forward` merely computes (`forward_code`), no hook hangs
anywhere, and nothing of PyTorch's own is replaced. Nothing is remembered here but the reading of bytecode, so that
whatever changes is seen.

What cannot be seen: a hook on the node of autograd's graph that accumulates a parameter's gradient; functions of
PyTorch that were replaced before fedlit was imported; and, of those replaced later, what `FUNCTIONS_OF_PYTORCH`,
`CLASSES` and `permission` do not name, such as `torch.addmm` or an operator of `torch.ops` itself.
"""

from operator import itemgetter
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.modules import module as module_hooks

from fedlit.fast.forward_code import KNOWN_ATTRIBUTES, Reading, is_data, is_known, names_only_what_is_known, read

LEAVES = (nn.Linear, nn.ReLU, nn.Flatten, nn.Identity, nn.Dropout)
CONTAINERS = (nn.Sequential, nn.ModuleList)
PYTORCH_S = {*LEAVES, *CONTAINERS}
METHODS = {base: frozenset(dir(base)) for base in (nn.Module, *LEAVES, *CONTAINERS)}
# What every class has, or may have without a part in a visit.
OF_A_CLASS = {
    "__annotate__",
    "__annotate_func__",
    "__annotations__",
    "__annotations_cache__",
    "__classdictcell__",
    "__constants__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__init__",
    "__init_subclass__",
    "__module__",
    "__orig_bases__",
    "__parameters__",
    "__qualname__",
    "__repr__",
    "__static_attributes__",
    "__weakref__",
}
OF_A_NETWORK = OF_A_CLASS | {"extra_repr", "forward"}
hooks_of = itemgetter(*(name for name in vars(nn.Module()) if name.endswith("_hooks")))
# As they were when fedlit was imported: who replaces one later wants it to be called.
CLASSES = tuple((cls, dict(vars(cls))) for cls in (nn.Module, *LEAVES, *CONTAINERS))
OWNERS: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (F, ("cross_entropy", "dropout", "linear", "relu")),
    (torch, ("flatten", "relu", "relu_")),
    (torch.Tensor, ("backward", "flatten", "relu", "relu_", "reshape", "view")),
    (torch.autograd, ("backward",)),
    (torch._C._nn, ("cross_entropy_loss", "linear")),
)
FUNCTIONS_OF_PYTORCH = tuple((owner, name, getattr(owner, name)) for owner, names in OWNERS for name in names)


def has_global_hooks() -> bool:
    """Whether somebody has hung a hook on all modules; torch's own function for this is younger than torch 2.6."""
    return bool(
        module_hooks._global_forward_hooks
        or module_hooks._global_forward_pre_hooks
        or module_hooks._global_backward_hooks
        or module_hooks._global_backward_pre_hooks
    )


def is_transparent(parts: list[nn.Module]) -> bool:
    """Whether nothing but its steps happens when a network of these parts is run."""
    if has_global_hooks():
        return False
    if not _is_as_imported():
        return False
    if not all(is_bare(part) for part in parts):
        return False
    own = [part for part in parts if type(part) not in PYTORCH_S]
    if not all(_has_an_ordinary_class(part) for part in own):
        return False
    readings = [_reading(part) for part in own]
    known = [reading for reading in readings if reading is not None]
    if len(known) != len(readings):
        return False
    attributes = {name for reading in known for name in reading.attributes}
    if not _are_parts_or_data(attributes, parts):
        return False
    return not _may_depend_on_size(known)


def _may_depend_on_size(readings: list[Reading]) -> bool:
    """Whether what a network does could follow from the number of samples, which is not the same in every batch.

    The sizes of a stand-in refuse to be calculated with; but `len` gives a number like any other.
    """
    computes = any(reading.computes for reading in readings)
    return computes and any(reading.asks_for_length for reading in readings)


def _is_as_imported() -> bool:
    """Whether nobody has replaced what is PyTorch's."""
    if any(getattr(owner, name) is not original for owner, name, original in FUNCTIONS_OF_PYTORCH):
        return False
    return all(vars(cls) == original for cls, original in CLASSES)


def is_bare(part: nn.Module) -> bool:
    """Whether nobody has hung a hook on a module, or a method in place of its class's."""
    state = vars(part)
    return METHODS[nn.Module].isdisjoint(state) and not any(hooks_of(state))


def names_beside(part: nn.Module, base: type) -> set[str]:
    """What the classes of a module define that are none of its base's, but for what every class has."""
    own = [cls for cls in type(part).__mro__ if cls not in base.__mro__]
    return {name for cls in own for name in vars(cls)} - OF_A_CLASS


def _has_an_ordinary_class(part: nn.Module) -> bool:
    """Whether a user's module has changed nothing of what a module does, but `forward`."""
    base = next(cls for cls in type(part).__mro__ if cls.__module__.startswith("torch."))
    if base not in (nn.Module, *CONTAINERS) or type(type(part)) is not type:
        return False
    names = names_beside(part, base) - OF_A_NETWORK
    # What a module has not is called by nobody but `forward`, whose names are looked at.
    return names.isdisjoint(METHODS[base]) and not any(name.startswith("__") for name in names)


EMPTY = Reading(frozenset(), frozenset(), False)


def _reading(part: nn.Module) -> Reading | None:
    """What a user's `forward` names; None if it could do more than compute."""
    forward = type(part).forward
    if forward in (nn.Sequential.forward, nn.Module.forward):
        return EMPTY
    if type(forward) is not FunctionType:
        return None
    reading = read(forward.__code__)
    if reading is None or not names_only_what_is_known(forward, reading):
        return None
    return reading


def _are_parts_or_data(names: set[str], parts: list[nn.Module]) -> bool:
    """Whether each name gives a part, a number or a known function, whichever part of the network it is asked of.

    Parameters and buffers are none of these, so their names are unseen.
    """
    unseen = names - KNOWN_ATTRIBUTES
    for part in parts:
        state = names & vars(part).keys()
        of_its_class = _of_its_class(part, names)
        if not all(name != "training" and is_known(vars(part)[name]) for name in state):
            return False
        if not all(is_data(getattr(type(part), name)) for name in of_its_class):
            return False
        unseen -= part._modules.keys() | state | of_its_class
    return not unseen


def _of_its_class(part: nn.Module, names: set[str]) -> set[str]:
    """Those names that a part has of its class."""
    methods = METHODS.get(type(part))
    if methods is not None:
        return names & methods
    return {name for name in names if hasattr(type(part), name)}
