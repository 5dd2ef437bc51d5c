"""Copies of what a network knows: into another network, frozen beside it, or recorded sample by sample."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.inputs import applied, batch_size
from fedlit.inputs import like as made_like
from fedlit.losses import class_sums
from fedlit.modes import evaluating

if TYPE_CHECKING:
    from fedlit.methods.base import FederatedModule


@torch.no_grad()
def copy_into(live: Mapping[str, Tensor], state: State) -> None:
    """Copy values into the live tensors of the same names."""
    targets: list[Tensor] = []
    values: list[Tensor] = []
    for name, target in live.items():
        value = state.get(name)
        if value is None:
            continue
        if target.shape != value.shape:  # it would be broadcast
            raise ValueError(f"{name!r} is {tuple(target.shape)}, but its state is {tuple(value.shape)}.")
        targets.append(target)
        values.append(value)
    if targets:
        torch._foreach_copy_(targets, values)


def frozen(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Copies that neither train nor travel."""
    return [tensor.detach().clone() for tensor in tensors]


@torch.no_grad()
def record(network: Callable[[Any], Tensor], client: Client | None, like: Tensor) -> Tensor | None:
    """A frozen network's outputs for a client's training samples, by position; None where they may differ in training.

    They do if inputs vary, or outputs in shape, or if a processor rounds a sample by its place in a batch.

    Args:
        network: Does not change in local training.
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
    if not _says_the_same_anywhere(network, said[0], next(iter(batches))[0], like):
        return None
    return torch.cat(said)


def _says_the_same_anywhere(network: Callable[[Any], Tensor], said: Tensor, x: Any, like: Tensor) -> bool:
    """Whether a sample's output has the same bits elsewhere in its batch, which depends on the processor.

    Kernels as narrow as those of `losses.mmd` would make much of a last bit.
    """
    turned = apply_to_collection(made_like(x, like), Tensor, lambda tensor: tensor.flip(0))
    return torch.equal(network(turned), said.flip(0))


class Vectors(nn.Module):
    """Buffers in the shapes of some parameters, zeros at first: what is remembered of each, by its number.

    Args:
        parameters: What they are like.

    Example:
        >>> c = Vectors([torch.ones(2), torch.ones(1, 3)])
        >>> list(c.state_dict()), [tensor.tolist() for tensor in c]
        (['0', '1'], [[0.0, 0.0], [[0.0, 0.0, 0.0]]])
    """

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__()
        for number, parameter in enumerate(parameters):
            self.register_buffer(str(number), torch.zeros_like(parameter, requires_grad=False))

    def __iter__(self) -> Iterator[Tensor]:
        return self.buffers()

    @torch.no_grad()
    def put(self, tensors: Iterable[Tensor]) -> None:
        """Copy values into them."""
        torch._foreach_copy_(list(self), list(tensors))


def trained(network: nn.Module) -> list[Tensor]:
    """The parameters that train."""
    return [parameter for parameter in network.parameters() if parameter.requires_grad]


def numbers(module: nn.Module) -> dict[str, int]:
    """Where each name of a parameter that trains stands in `trained`; one that has two names stands there once.

    Example:
        >>> numbers(nn.Sequential(nn.Linear(1, 1), nn.ReLU(), nn.Linear(1, 1, bias=False)))
        {'0.weight': 0, '0.bias': 1, '2.weight': 2}
    """
    places = {id(parameter): place for place, parameter in enumerate(trained(module))}
    found = dict(module.named_parameters(remove_duplicate=False))
    return {name: places[id(parameter)] for name, parameter in found.items() if parameter.requires_grad}


def shared_numbers(module: nn.Module, shared: Iterable[str]) -> dict[str, int]:
    """As `numbers`, of what is shared: under `trainer.batch_norm: local`, BatchNorm layers stay with clients."""
    names = set(shared)
    return {name: number for name, number in numbers(module).items() if name in names}


def mean_gradient(
    network: nn.Module, client: Client, like: Tensor, loss: Callable[[Any, Any], Tensor] = F.cross_entropy
) -> list[Tensor]:
    """Of a loss over all training samples, in evaluation mode, for each parameter that trains.

    Args:
        network: Whose outputs are compared with the targets.
        client: Whose samples.
        like: A tensor of the dtype and on the device that inputs are to have.
        loss: The mean over a batch.
    """
    batches = client.train_batches()
    batches.drop_last = False
    total = [torch.zeros_like(parameter) for parameter in trained(network)]
    with torch.enable_grad(), evaluating(network):
        for batch in batches:
            x, y = made_like(batch, like)
            part = loss(applied(network, x), y) * (batch_size(x, y) / batches.num_samples)
            torch._foreach_add_(total, torch.autograd.grad(part, trained(network)))
    return total


@torch.no_grad()
def class_means(
    values: Callable[[Tensor], Tensor], client: Client, like: Tensor, num_classes: int
) -> tuple[Tensor, Tensor]:
    """Of each class of the training samples, the mean of what is computed of them, ``[C, D]``, and how many, ``[C]``.

    Args:
        values: Gives ``[N, D]``.
        client: Whose samples.
        like: A tensor of the dtype and on the device that inputs are to have.
        num_classes: ``C``.
    """
    batches = client.train_batches().to(like.device)
    batches.drop_last = False
    parts = [class_sums(values(x.to(like)), y, num_classes) for x, y in batches]
    sums = torch.stack([sums for sums, _ in parts]).sum(dim=0)
    counts = torch.stack([counts for _, counts in parts]).sum(dim=0)
    return sums / counts.clamp_min(1)[:, None], counts


def twin(module: "FederatedModule") -> "FederatedModule":
    """A copy with networks of its own, on the same fabric and data."""
    shared = (module.fabric, module.client)
    return copy.deepcopy(module, {id(thing): thing for thing in shared if thing is not None})
