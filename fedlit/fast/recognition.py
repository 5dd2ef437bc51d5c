"""Which network is a perceptron: found by what it does with a batch, whoever wrote its class.

A stand-in for a batch is sent through the network and notes each step. It is sent only where nothing but those steps
can happen: every part is a layer of PyTorch's or a user's module whose `forward` merely computes (`forward_code`), no
hook hangs anywhere, and nothing of PyTorch's own is replaced. Nothing is remembered between two visits but the reading
of bytecode, so that whatever changes is seen; it takes about 0.1 ms.

What cannot be seen: a hook on the node of autograd's graph that accumulates a parameter's gradient, and functions of
PyTorch that were replaced before fedlit was imported.
"""

from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from types import FunctionType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
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
FUNCTIONS_OF_PYTORCH = tuple(
    (owner, name, getattr(owner, name))
    for owner, names in ((F, ("cross_entropy", "dropout", "linear", "relu")), (torch, ("flatten", "relu", "relu_")))
    for name in names
)
BATCH = 2_147_483_629  # stands for the number of samples; a number that nobody writes


class Unknown(Exception):
    """A step of the network that is not a perceptron's."""


@dataclass(frozen=True)
class Flatten:
    """All dimensions but the first become one, of this width if the network names it."""

    width: int | None = None


@dataclass(frozen=True, eq=False)
class Linear:
    """``x W^T + b``."""

    weight: nn.Parameter
    bias: nn.Parameter


@dataclass(frozen=True)
class Relu:
    """Negative numbers become 0."""


Step = Flatten | Linear | Relu


class StandIn:
    """Stands for a batch ``[N, ...]`` and notes what is done with it; whatever it does not know is an error.

    It can be used once: what comes out is another. So nothing is missed if a step works in place, and a network that
    uses an output twice, as a skip does, is unknown.
    """

    def __init__(self, steps: tuple[Step, ...] = ()) -> None:
        self.steps = steps
        self.is_used = False

    def then(self, *steps: Step) -> "StandIn":
        if self.is_used:
            raise Unknown
        self.is_used = True
        return StandIn((*self.steps, *steps))

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> "StandIn":
        noted = FUNCTIONS.get(function)
        if noted is None:
            raise Unknown
        return noted(*args, **(kwargs or {}))

    def __len__(self) -> int:
        return BATCH

    @property
    def shape(self) -> "Shape":
        return Shape()

    def size(self, dim: int | None = None) -> "int | Shape":
        return Shape() if dim is None else Shape()[dim]

    def relu(self) -> "StandIn":
        return self.then(Relu())

    relu_ = relu

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> "StandIn":
        if (start_dim, end_dim) != (1, -1):
            raise Unknown
        return self.then(Flatten())

    def reshape(self, *shape: Any) -> "StandIn":
        match shape:
            case (first, -1) | ((first, -1),) if first == BATCH:
                return self.then(Flatten())
            case (first, int(width)) | ((first, int(width)),) if first in (BATCH, -1) and 0 < width < BATCH:
                return self.then(Flatten(width))
        raise Unknown

    view = reshape


class Shape:
    """The shape of a batch, of which only the first number is known."""

    def __getitem__(self, dim: int) -> int:
        if dim != 0:
            raise Unknown
        return BATCH


def _linear(x: StandIn, weight: Tensor, bias: Tensor | None = None) -> StandIn:
    if type(x) is not StandIn or type(weight) is not nn.Parameter or type(bias) is not nn.Parameter:
        raise Unknown
    return x.then(Linear(weight, bias))


def _relu(x: StandIn, inplace: bool = False) -> StandIn:
    return x.relu()


def _flatten(x: StandIn, start_dim: int = 0, end_dim: int = -1) -> StandIn:
    return x.flatten(start_dim, end_dim)


def _dropout(x: StandIn, p: float = 0.5, training: bool = True, inplace: bool = False) -> StandIn:
    if p != 0:  # also while nothing is trained: a network is recognised as it will be trained
        raise Unknown
    return x.then()


FUNCTIONS: dict[Any, Any] = {
    F.linear: _linear,
    F.relu: _relu,
    torch.relu: _relu,
    torch.relu_: _relu,
    torch.flatten: _flatten,
    F.dropout: _dropout,
}


@dataclass(frozen=True)
class Perceptron:
    """Linear layers with ReLU between.

    Attributes:
        weights: Of every layer, ``[out, in]``.
        biases: Of every layer.
        flattens: Whether it takes inputs of any shape ``[N, ...]``; else it must be given ``[N, D]``.
    """

    weights: list[nn.Parameter]
    biases: list[nn.Parameter]
    flattens: bool

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Weight and bias of every layer in turn."""
        return list(chain.from_iterable(zip(self.weights, self.biases, strict=True)))


def perceptron(network: nn.Module) -> Perceptron | None:
    """What a network is, if it is a perceptron that nobody watches; None if it is, or may be, anything else."""
    parts = list(network.modules())
    try:
        if not is_transparent(parts):
            return None
        result = network(StandIn())
        if type(result) is not StandIn:
            return None
        found = _parsed(result.steps)
    except Exception:  # its own steps will tell, if there is anything to tell
        return None
    if found is None or not _is_all(parts, found.parameters):
        return None
    return found


def _parsed(steps: tuple[Step, ...]) -> Perceptron | None:
    """The layers: [flatten] linear (relu linear)*; flattening what is flat already changes nothing."""
    weights: list[nn.Parameter] = []
    biases: list[nn.Parameter] = []
    flattens = False
    width: int | None = None
    after_linear = False
    for step in steps:
        if isinstance(step, Flatten):
            flattens = flattens or not weights
            if step.width not in (None, width) and width is not None:
                return None
            width = step.width or width
        elif isinstance(step, Relu):
            if not after_linear:
                return None
            after_linear = False
        else:
            if after_linear or width not in (None, step.weight.shape[1]):
                return None
            after_linear = True
            width = step.weight.shape[0]
            weights.append(step.weight)
            biases.append(step.bias)
    return Perceptron(weights, biases, flattens) if after_linear else None


def _is_all(parts: list[nn.Module], found: list[nn.Parameter]) -> bool:
    """Whether these are all parameters of a network, each once and in no way special."""
    used = {id(parameter) for parameter in found}
    if len(used) != len(found):  # one that is used twice has the sum of two gradients
        return False
    if any(part._buffers for part in parts):  # nobody knows what it is for
        return False
    if {id(parameter) for part in parts for parameter in part._parameters.values()} != used:  # a spare part
        return False
    return all(is_ordinary(parameter) for parameter in found)


def is_ordinary(parameter: nn.Parameter) -> bool:
    """Whether a parameter is trained on a CPU in single precision, and nobody sees its gradient."""
    return (
        parameter.requires_grad
        and parameter.dtype == torch.float32
        and parameter.is_cpu
        and not parameter._backward_hooks
        and not parameter._post_accumulate_grad_hooks
    )


def is_transparent(parts: list[nn.Module]) -> bool:
    """Whether nothing but its steps happens when a network of these parts is run."""
    if module_hooks._has_any_global_hook():
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
    # A branch could ask for the number of samples, which is not the same in every batch.
    branches = any(reading.branches for reading in known)
    return not (branches and any(reading.asks_for_size for reading in known))


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
    """Whether each name gives a part, a number or a known function, whichever part of the network it is asked of."""
    unseen = names - KNOWN_ATTRIBUTES
    for part in parts:
        state = names & vars(part).keys()
        of_its_class = _of_its_class(part, names)
        if not all(name != "training" and is_known(vars(part)[name]) for name in state):
            return False
        if not all(is_data(getattr(type(part), name)) for name in of_its_class):
            return False
        if not names.isdisjoint(part._parameters) or not names.isdisjoint(part._buffers):
            return False
        unseen -= part._modules.keys() | state | of_its_class
    return not unseen


def _of_its_class(part: nn.Module, names: set[str]) -> set[str]:
    """Those names that a part has of its class."""
    methods = METHODS.get(type(part))
    if methods is not None:
        return names & methods
    return {name for name in names if hasattr(type(part), name)}
