"""A stand-in for a batch, which notes what a network does with it."""

from dataclasses import dataclass
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

LENGTH = 2_147_483_629  # what `len` says, which must be a number; one that nobody writes


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


class BatchSize:
    """The number of samples, which is not the same in every batch: it may be passed on, but nothing follows from it."""

    def _unknown(self, *_: object) -> NoReturn:
        raise Unknown

    __bool__ = __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __hash__ = _unknown  # type: ignore[assignment]


BATCH = BatchSize()


def is_batch_size(value: object) -> bool:
    """Whether a number in a shape is that of the samples."""
    return value is BATCH or value == LENGTH


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
        noted = FUNCTIONS[function]  # any other is an error
        return noted(*args, **(kwargs or {}))

    def __len__(self) -> int:
        return LENGTH

    def __bool__(self) -> bool:
        raise Unknown  # what follows would depend on the batch

    def __eq__(self, other: object) -> bool:
        raise Unknown

    @property
    def shape(self) -> "Shape":
        return Shape()

    def size(self, dim: int | None = None) -> "BatchSize | Shape":
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
            case (first, int(width)) | ((first, int(width)),):
                return self.then(_flattened(first, width))
        raise Unknown

    view = reshape


class Shape:
    """The shape of a batch, of which only the first number is known."""

    def __getitem__(self, dim: int) -> BatchSize:
        if dim != 0:
            raise Unknown
        return BATCH


def _flattened(first: Any, width: int) -> Flatten:
    """What a shape of two numbers means; of a width that is -1, the first must be the number of samples."""
    if is_batch_size(first):
        return Flatten(None if width == -1 else width)
    if first == -1:
        return Flatten(width)
    raise Unknown


def _linear(x: StandIn, weight: Tensor, bias: Tensor | None = None) -> StandIn:
    if type(weight) is not nn.Parameter or type(bias) is not nn.Parameter:
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
