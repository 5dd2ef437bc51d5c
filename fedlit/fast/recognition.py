"""Which network is a perceptron: found by what it does with a batch, whoever wrote its class.

A stand-in for a batch is sent through the network and notes each step, wherever nothing but those steps can happen
(`transparency`). It takes about 0.1 ms, so that it is done anew for every visit, unless no code of a user's has run
since the last (`begun_visit`).
"""

from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor, nn

from fedlit.fast.stand_in import Flatten, Relu, StandIn, Step
from fedlit.fast.transparency import is_transparent


@dataclass(frozen=True)
class Perceptron:
    """Linear layers with ReLU between.

    Attributes:
        weights: Of every layer, ``[out, in]``.
        biases: Of every layer.
        flattens: Whether it takes inputs of any shape ``[N, ...]``; else it must be given ``[N, D]``.
    """

    weights: list[Tensor]
    biases: list[Tensor]
    flattens: bool

    @property
    def parameters(self) -> list[Tensor]:
        """Weight and bias of every layer in turn."""
        return list(chain.from_iterable(zip(self.weights, self.biases, strict=True)))


def perceptron(network: nn.Module) -> Perceptron | None:
    """What a network is, if it is a perceptron that nobody watches; None if it is, or may be, anything else."""
    parts = list(network.modules())
    try:
        if not is_transparent(parts):
            return None
        result = network(StandIn())
        if result.is_used:  # something was done to it in place after all
            return None
        found = _parsed(result.steps)
    except Exception:  # its own steps will tell, if there is anything to tell
        return None
    if found is None or not _is_all(parts, found.parameters):
        return None
    if not all(_fit(*layer) for layer in zip(found.weights, found.biases, strict=True)):
        return None
    return found


def _parsed(steps: tuple[Step, ...]) -> Perceptron | None:
    """The layers: [flatten] linear (relu linear)*; flattening what is flat already changes nothing."""
    weights: list[Tensor] = []
    biases: list[Tensor] = []
    flattens = False
    width: int | None = None
    after_linear = False
    for step in steps:
        if isinstance(step, Flatten):
            flattens = flattens or not weights
            if step.width is not None:
                if width not in (None, step.width):
                    return None
                width = step.width
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


def _fit(weight: Tensor, bias: Tensor) -> bool:
    """Whether there is a bias for every output; one for all would have the sum of their gradients."""
    return bias.shape == weight.shape[:1]


def _is_all(parts: list[nn.Module], found: list[Tensor]) -> bool:
    """Whether these are all parameters of a network, each once and in no way special."""
    used = {id(parameter) for parameter in found}
    if len({_place(parameter) for parameter in found}) != len(found):  # one is another, or changes with it
        return False
    if any(part._buffers for part in parts):  # nobody knows what it is for
        return False
    if {id(parameter) for part in parts for parameter in part._parameters.values()} != used:  # a spare part
        return False
    return all(is_ordinary(parameter) for parameter in found)


def _place(parameter: Tensor) -> int:
    """Where a parameter lies in memory; one that lies nowhere shares with nobody."""
    return parameter.untyped_storage().data_ptr() or id(parameter)


def is_ordinary(parameter: Tensor) -> bool:
    """Whether a parameter is trained on a CPU in single precision, and nobody sees its gradient."""
    return (
        parameter.requires_grad
        and parameter.dtype == torch.float32
        and parameter.is_cpu
        and not parameter._backward_hooks
        and not parameter._post_accumulate_grad_hooks
    )
