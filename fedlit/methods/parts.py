"""Which part of a network is whose, for any network: by its kinds of layers, not by how it is written."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from fedlit.bounds import check_count
from fedlit.heads import linear_layers

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def batch_norm_names(module: nn.Module) -> frozenset[str]:
    """Names of all that BatchNorm layers hold, in the module's state: weights and statistics.

    Example:
        >>> sorted(batch_norm_names(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False))))
        ['1.num_batches_tracked', '1.running_mean', '1.running_var']
    """
    found: set[str] = set()
    for path, part in module.named_modules():
        if isinstance(part, BATCH_NORMS):
            found |= {f"{path}.{name}".lstrip(".") for name in part.state_dict()}
    return frozenset(found)


def head_names(network: nn.Module, layers: int) -> frozenset[str]:
    """Names of the head in the network's state: its last linear layers, in order of `named_modules`.

    Args:
        network: Must have something beside its head.
        layers: Linear layers of the head, as `model.head_layers` says; with 0 there is none.

    Example:
        >>> sorted(head_names(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)), 1))
        ['2.bias', '2.weight']
    """
    check_count("model.head_layers", layers, least=0)
    linear = linear_layers(network)
    check_head(network, layers)
    paths = tuple(f"{path}." for path, _ in linear[len(linear) - layers :])
    state = network.state_dict(keep_vars=True)
    head = {name for name in state if name.startswith(paths)}
    if len(head) == len(state):
        raise ValueError(
            f"`model.head_layers` {layers} is all that {type(network).__name__} has: nothing would travel."
        )
    of_the_head = {id(state[name]) for name in head}
    for name, tensor in state.items():
        if id(tensor) in of_the_head and name not in head:
            raise ValueError(
                f"`model.network`: {type(network).__name__} has {name!r} both in its head and in its body."
            )
    return frozenset(head)


def check_head(network: nn.Module, layers: int, option: str = "model.network") -> None:
    """Refuse a head of more linear layers than the network holds.

    Args:
        network: As its user built it.
        layers: Linear layers of the head.
        option: Where the network was given, as the user typed it.
    """
    linear = linear_layers(network)
    if linear and linear[-1][0] == "":  # the network is one itself, and nothing comes before it
        linear = []
    if len(linear) < layers:
        kind = type(network).__name__
        raise ValueError(f"`{option}`: {kind} must hold linear layers for a head, {layers}, and has {len(linear)}.")


def groups(*networks: nn.Module) -> Iterable[dict[str, Any]]:
    """A group of trained parameters for each network, so that clipping one's gradient does not depend on another's."""
    return [{"params": [p for p in network.parameters() if p.requires_grad]} for network in networks]
