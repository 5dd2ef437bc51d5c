"""What the server sends a client: all that is shared, or what the method's `download` says."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fedlit.aggregation import State, Upload, defect
from fedlit.data.client import Client
from fedlit.engine.module.log_sinks import refused
from fedlit.engine.usage import UsageError
from fedlit.methods.base import FederatedModule
from fedlit.rng import isolated


class Sent(NamedTuple):
    """What a client is sent: entries of the method's state, and what else the method reads in `self.received`."""

    state: State
    received: State


def sends_apart(module: FederatedModule) -> bool:
    """Whether clients are not all sent the same."""
    return is_overridden("download", module, FederatedModule)


def sent_by(
    module: FederatedModule, client: Client, current: Mapping[str, Tensor], uploads: Mapping[int, State], seed: int
) -> Sent:
    """What a method's `download` gives a client, checked and copied: what the client does with it is its own affair.

    Args:
        module: With the server's state.
        client: Who is to receive it.
        current: What it would receive else.
        uploads: The last of every client, where they are kept.
        seed: Of all that is drawn.
    """
    copy = {name: tensor.clone() for name, tensor in current.items()}
    may_differ = is_overridden("configure_client", module, FederatedModule)  # whose networks may have other shapes
    with isolated(seed), refused(module, "download"):
        given = module.download(client, copy, MappingProxyType(uploads))  # type: ignore[arg-type]
    whose = f"`download` of {type(module).__name__}, for client {client.id}"
    if not isinstance(given, Mapping) or not all(isinstance(value, Tensor) for value in given.values()):
        raise UsageError(f"{whose}, must give a mapping from names to tensors, got {type(given).__name__}.")
    live = module.state_dict()
    known = {name: tensor for name, tensor in given.items() if name in live}
    expected = {name: _like(live.get(name, tensor), tensor, may_differ) for name, tensor in given.items()}
    if problem := defect(Upload(client.id, dict(given)), expected):
        raise UsageError(f"{whose}, gave what cannot be used: {problem}.")
    received = {name: tensor.detach().clone() for name, tensor in given.items() if name not in known}
    return Sent(known, received)


def _like(live: Tensor, given: Tensor, may_differ: bool) -> Tensor:
    """What an entry must be like: the server's own, of any shape where clients' networks may have others."""
    if not may_differ:
        return live
    return live.new_empty(given.shape)
