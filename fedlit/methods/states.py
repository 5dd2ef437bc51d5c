"""Copies of what a network knows: into another network, frozen beside it, or recorded sample by sample."""

import copy
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.inputs import like as made_like

if TYPE_CHECKING:
    from fedlit.methods.base import FederatedModule


@torch.no_grad()
def copy_into(live: Mapping[str, Tensor], state: State) -> None:
    """Copy values into the live tensors of the same names."""
    names = [name for name in state if name in live]
    for name in names:
        if live[name].shape != state[name].shape:  # it would be broadcast
            raise ValueError(f"{name!r} is {tuple(live[name].shape)}, but its state is {tuple(state[name].shape)}.")
    if names:
        torch._foreach_copy_([live[name] for name in names], [state[name] for name in names])


def frozen(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies that neither train nor travel."""
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def record(network: Callable[[Any], Tensor], client: Client | None, like: Tensor) -> Tensor | None:
    """What a frozen network says of each sample of a visit, by position; None if inputs vary, or outputs in shape.

    Args:
        network: Does not change during the visit.
        client: Whose samples; None, under a plain Trainer, records nothing.
        like: A tensor of the dtype and on the device that inputs are to have.
    """
    if client is None or not client.sees_the_same_inputs:
        return None
    batches = client.train_batches()
    batches.drop_last = False
    said = [network(made_like(x, like)) for x, _ in batches]
    if len({part.shape[1:] for part in said}) > 1:  # texts of different lengths
        return None
    return torch.cat(said)


def twin(module: "FederatedModule") -> "FederatedModule":
    """A copy with networks of its own, on the same fabric and data."""
    shared = (module.fabric, module.client)
    return copy.deepcopy(module, {id(thing): thing for thing in shared if thing is not None})
