"""What methods take from networks: their parameters, copies of their state, their outputs, means and gradients."""

import copy
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn
from torch.optim import Optimizer

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

    They differ if inputs or the outputs' shapes vary, or if a processor rounds a sample by its place in a batch.

    Args:
        network: Does not change in local training.
        client: Has the samples; None, under a plain Trainer, records nothing.
        like: A tensor of the dtype and on the device that inputs are to have.
    """
    if client is None or not client.sees_the_same_inputs:
        return None
    batches = client.train_batches()
    batches.drop_last = False
    outputs = [network(made_like(x, like)) for x, _ in batches]
    if len({part.shape[1:] for part in outputs}) > 1:  # texts of different lengths
        return None
    if not _is_independent_of_places(network, outputs[0], next(iter(batches))[0], like):
        return None
    return torch.cat(outputs)


def _is_independent_of_places(network: Callable[[Any], Tensor], outputs: Tensor, x: Any, like: Tensor) -> bool:
    """Whether a sample has the same bits elsewhere in its batch: kernels as narrow as those of `losses.mmd` need it."""
    flipped = apply_to_collection(made_like(x, like), Tensor, lambda tensor: tensor.flip(0))
    return torch.equal(network(flipped), outputs.flip(0))


class Vectors(nn.Module):
    """Buffers in the shapes of some parameters, zeros at first, named by number.

    Args:
        parameters: Give the shapes.

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


def num_steps_taken(optimizer: Optimizer) -> Tensor:
    """1 if 16-mixed is about to take an optimiser's step, 0 if it skips the step because a gradient overflowed."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    return torch.stack(torch._foreach_norm(gradients)).isfinite().all()  # a tensor: the host need not wait for it


def groups(*networks: nn.Module) -> list[dict[str, Any]]:
    """A group of trained parameters for each network, so that clipping one's gradient does not depend on another's."""
    return [{"params": trained(network)} for network in networks]


def numbers(module: nn.Module) -> dict[str, int]:
    """The place in `trained` of each parameter that trains, by name; a parameter with two names has one place.

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
    """The gradient of a loss over all training samples, in evaluation mode, for each parameter that trains.

    Args:
        network: Gives the outputs.
        client: Has the samples.
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
    """The mean of some values of the training samples of each class, ``[C, D]``, and their counts, ``[C]``.

    Args:
        values: Gives ``[N, D]``.
        client: Has the samples.
        like: A tensor of the dtype and on the device that inputs are to have.
        num_classes: ``C``.
    """
    batches = client.train_batches().to(like.device)
    batches.drop_last = False
    parts = [class_sums(values(x.to(like)), y, num_classes) for x, y in batches]
    sums = torch.stack([sums for sums, _ in parts]).sum(dim=0)
    counts = torch.stack([counts for _, counts in parts]).sum(dim=0)
    return sums / counts.clamp_min(1)[:, None], counts


class Ensemble:
    """Networks of many clients, of which only one per architecture is live: clients' states are loaded in turn.

    Args:
        uploads: States by client id.
        prefix: What the names of the networks' entries begin with.
        build: Gives a client's network; it is called once per architecture.
        architecture: Clients for which this is equal share a live network.
        device: Where the networks run.
    """

    def __init__(
        self,
        uploads: Mapping[int, State],
        prefix: str,
        build: Callable[[int], nn.Module],
        architecture: Callable[[int], object],
        device: torch.device,
    ) -> None:
        live: dict[object, nn.Module] = {}
        self.members: list[tuple[nn.Module, State]] = []
        for k in sorted(uploads):
            state = {name.removeprefix(prefix): t for name, t in uploads[k].items() if name.startswith(prefix)}
            key = architecture(k)
            if key not in live:
                live[key] = build(k).requires_grad_(False).eval().to(device)
            self.members.append((live[key], state))

    def __len__(self) -> int:
        return len(self.members)

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """The outputs of all for a batch, ``[K, N, C]``, in the order of their ids."""
        return torch.stack([applied(network, x, state) for network, state in self.members])


def twin(module: "FederatedModule") -> "FederatedModule":
    """A copy of a method with networks of its own, on the same fabric and data."""
    shared = (module.fabric, module.client)
    return copy.deepcopy(module, {id(thing): thing for thing in shared if thing is not None})
