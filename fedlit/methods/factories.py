"""Factories of networks and optimisers, and choices of them for some clients."""

from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from numbers import Integral
from typing import Any, TypeVar

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import SGD, Optimizer

from fedlit.data.client import Client

Configure = TypeVar("Configure", bound=Callable[..., None])
NetworkFactory = Callable[[], nn.Module]
# Containers first and int keys: in another order the CLI saves a config that it cannot read again.
ClientNetworks = list[NetworkFactory] | dict[int, NetworkFactory] | None
ClientOptimizers = list[OptimizerCallable] | dict[int, OptimizerCallable] | None
BESIDE_A_RATE = ("momentum", "dampening", "nesterov", "maximize")  # of SGD; weight decay is a part of the gradient


def build(network: NetworkFactory, option: str) -> nn.Module:
    """A new network from its factory.

    Example:
        >>> build(lambda: nn.Linear(2, 1), "network")
        Linear(in_features=2, out_features=1, bias=True)
    """
    if isinstance(network, nn.Module) or not callable(network):
        raise TypeError(
            f"`{option}` must be a class or function that builds a network, so that each client can "
            f"have its own; got a ready {type(network).__name__}."
        )
    try:
        built = network()
    except (TypeError, RuntimeError, LookupError, AttributeError, AssertionError) as error:  # no ValueError
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
        raise ValueError(f"`{option}` cannot be built: {problem}") from error
    if not isinstance(built, nn.Module):
        raise TypeError(f"`{option}` must build a network, got a {type(built).__name__}.")
    _check_copyable(built, option)
    return built


def _check_copyable(network: nn.Module, option: str) -> None:
    """Refuse tensors that are computed from parameters once, such as by torch's old `weight_norm`."""
    for path, part in network.named_modules():
        for name, value in vars(part).items():
            if isinstance(value, Tensor) and not value.is_leaf:
                full_name = f"{path}.{name}".lstrip(".")
                raise ValueError(
                    f"`{option}`: {full_name!r} is computed from parameters when the network is built, and cannot be "
                    "copied; in place of torch.nn.utils.weight_norm, spectral_norm or prune, use "
                    "torch.nn.utils.parametrizations."
                )


def check_builders(optimizer: OptimizerCallable, client_optimizers: ClientOptimizers) -> None:
    """Refuse optimisers that are built already: every client has its own."""
    check_builder("model.optimizer", optimizer)
    if not isinstance(client_optimizers, list | dict | None):
        raise TypeError(
            f"`model.client_optimizers` must be a list or a mapping from client id, got {client_optimizers!r}."
        )
    for chosen in numbered(client_optimizers).values():
        check_builder("model.client_optimizers", chosen)


def check_builder(option: str, optimizer: OptimizerCallable) -> None:
    """Refuse an optimiser that is built already."""
    if isinstance(optimizer, Optimizer) or not callable(optimizer):
        raise TypeError(
            f"`{option}` must be a class or function that builds an optimiser from parameters, such as "
            f"partial(torch.optim.SGD, lr=0.1), since each use has its own; got a ready {type(optimizer).__name__}."
        )


def check_sgd(
    optimizer: OptimizerCallable, client_optimizers: ClientOptimizers, may_have: Collection[str], why: str
) -> None:
    """Refuse optimisers other than torch's SGD, for a method whose equations hold for its steps alone.

    Args:
        optimizer: Of all clients.
        client_optimizers: Of some clients.
        may_have: Settings that are allowed beside a rate, such as momentum.
        why: Ends the error message.
    """
    for option, built in _built(optimizer, client_optimizers):
        odd = [type(built).__name__] if type(built) is not SGD else _beside_a_rate(built, may_have)
        if odd:
            without = " and ".join(name for name in BESIDE_A_RATE if name not in may_have)
            raise ValueError(f"`{option}` must be torch.optim.SGD without {without}, {why}; got {odd[0]}.")


def check_no_line_search(optimizer: OptimizerCallable, client_optimizers: ClientOptimizers) -> None:
    """Refuse an optimiser that compares losses, for a method whose penalty is in the gradient alone."""
    for option, built in _built(optimizer, client_optimizers):
        if any(group.get("line_search_fn") for group in built.param_groups):
            raise ValueError(
                f"`{option}`: a line search compares losses, and the penalty is added to the gradient alone; "
                "set `line_search_fn` to None."
            )


def _built(optimizer: OptimizerCallable, client_optimizers: ClientOptimizers) -> Iterator[tuple[str, Optimizer]]:
    """An optimiser by each factory, and the option that names it."""
    chosen = {"model.optimizer": optimizer}
    chosen |= {f"model.client_optimizers[{k}]": factory for k, factory in numbered(client_optimizers).items()}
    for option, factory in chosen.items():
        try:
            yield option, factory([nn.Parameter(torch.zeros(1))])
        except Exception:  # reported later, with the client's own parameters
            continue


def _beside_a_rate(optimizer: Optimizer, may_have: Collection[str]) -> list[str]:
    names = [name for name in BESIDE_A_RATE if name not in may_have]
    return [f"{name} {group[name]}" for group in optimizer.param_groups for name in names if group[name]]


def numbered(per_client: list | dict | None) -> dict[int, Any]:
    """The choices of some clients, by client id.

    Example:
        >>> numbered(["a", "b"]), numbered({4: "c"}), numbered(None)
        ({0: 'a', 1: 'b'}, {4: 'c'}, {})
    """
    if isinstance(per_client, dict):
        return per_client
    return dict(enumerate(per_client or []))


def draws_initial_values(*options: str) -> Callable[[Configure], Configure]:
    """For `configure_client`: what it builds for most clients is as the method's own, but for its initial values.

    It is then called for these values alone, and clients train the method's own networks in turn.

    Args:
        options: Names of the attributes by which some clients have networks of another architecture.
    """

    def mark(configure: Configure) -> Configure:
        configure.own_networks = options  # type: ignore[attr-defined]
        return configure

    return mark


def has_common_networks(module: Any, client: Client) -> bool:
    """Whether a client's networks are as the method's own, but for their values; see `draws_initial_values`."""
    options = getattr(module.configure_client, "own_networks", None)
    return options is not None and all(for_client(None, getattr(module, name), client) is None for name in options)


def for_client(common: Any, per_client: list | dict | None, client: Client | None) -> Any:
    """The client's own choice if it has one, else the common one."""
    if per_client is None or client is None:
        return common
    if isinstance(per_client, dict):
        return per_client.get(client.id, common)
    return per_client[client.id]


def check_choices(option: str, choices: list | dict | None, num_clients: int) -> None:
    """Refuse choices that name neither every client (a list) nor existing ones (a mapping).

    Args:
        option: As the user typed it, such as `model.client_networks`.
        choices: One for each client, or by client id; None is no choice.
        num_clients: Clients in the federation.
    """
    if choices is not None and not isinstance(choices, list | dict):
        raise ValueError(f"`{option}` must be a list or a mapping from client id, got {choices!r}.")
    if isinstance(choices, list) and len(choices) != num_clients:
        raise ValueError(f"`{option}` must have one entry per client, {num_clients}, got {len(choices)}.")
    if isinstance(choices, dict):
        check_ids(option, choices, num_clients)


def check_ids(option: str, ids: Iterable[int], num_clients: int) -> None:
    """Refuse the id of a client that does not exist."""
    for k in ids:
        if not isinstance(k, Integral) or not 0 <= k < num_clients:
            raise ValueError(f"`{option}` names client {k!r}, but the clients are 0 to {num_clients - 1}.")


def kind(choice: Any) -> Any:
    """A key of a choice, equal for two factories of the same call, as a configuration makes them.

    Example:
        >>> kind(partial(nn.Linear, 2)) == kind(partial(nn.Linear, 2))
        True
        >>> kind(partial(nn.Linear, 2)) == kind(nn.Linear)
        False
    """
    if isinstance(choice, partial):
        return repr((choice.func, choice.args, choice.keywords))
    return choice
