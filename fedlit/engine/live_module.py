"""The one live module of a process: states of clients are loaded into it in turn, and it is restored after each.

Restored after every client: gradient mode, default dtype, attributes and parts of the module, and where its tensors
lie. Random states are `fedlit.rng.isolated`'s business. What is not handled: docs/clients.md."""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from typing import Any, Literal

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor, nn

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.engine.logged_values import refusing_logs
from fedlit.engine.plan import UsageError
from fedlit.fast.memory import lay_out
from fedlit.methods.base import FederatedModule
from fedlit.methods.factories import has_common_networks
from fedlit.methods.states import copy_into
from fedlit.modes import modes_of, restore_modes, settle_modes
from fedlit.records.round_record import Failure, failure
from fedlit.rng import derive, isolated


def frozen_names(module: nn.Module) -> list[str]:
    """Parameters that require no gradients."""
    return [name for name, parameter in module.named_parameters() if not parameter.requires_grad]


def constant_names(module: FederatedModule) -> list[str]:
    """Parameters that would travel, but require no gradients."""
    return [name for name in frozen_names(module) if module.is_shared(name)]


def trained_names(module: nn.Module, names: Iterable[str]) -> list[str]:
    """Of these, the floating parameters that train; one that has two names stands there under both."""
    parameters = dict(module.named_parameters(remove_duplicate=False))
    trained = {name for name, p in parameters.items() if p.requires_grad and p.is_floating_point()}
    return [name for name in names if name in trained]


def check_still_frozen(module: nn.Module, constant: Collection[str]) -> None:
    """Refuse to train what nobody would average."""
    if not constant:
        return
    frozen = set(frozen_names(module))
    for name in constant:
        if name not in frozen:
            raise UsageError(_message(name, "was unfrozen"))


def check_unchanged(state: Mapping[str, Tensor], constant: Mapping[str, Tensor], where: str) -> None:
    """Refuse a change of what clients are sent only once."""
    for name, value in constant.items():
        if state[name] is not value and not torch.equal(state[name], value):
            raise UsageError(_message(name, f"was changed {where}"))


def _message(name: str, what: str) -> str:
    return (
        f"`model`: {name!r} required no gradients when the run began, so clients were sent it once, and it {what}; "
        "let it require gradients at first and freeze it in `on_round_start` of a callback, or make it a buffer."
    )


def without_frozen(kept: State, frozen: Collection[str], initial: Mapping[str, Tensor]) -> State:
    """What a client keeps, but for frozen parameters that are still as everybody's were at first."""
    same = {name for name in frozen if name in kept and name in initial and torch.equal(kept[name], initial[name])}
    return {name: tensor for name, tensor in kept.items() if name not in same}


@contextmanager
def restored_requires_grad(module: nn.Module) -> Iterator[None]:
    """Every parameter is trained, or not, afterwards as it was before."""
    before = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        for parameter, is_trained in before:
            if parameter.requires_grad != is_trained:
                parameter.requires_grad_(is_trained)


STRUCTURE = ("_parameters", "_buffers", "_modules")
Container = dict[str, Any] | list[Any] | set[Any]
Parts = dict[str, Any]


class ModuleSnapshot:
    """The attributes and the structure of a module and its parts.

    With them, gradient mode and default dtype. Values of parameters and buffers are not part of it: the next state is
    loaded into them. Of an attribute that is a dict, a list or a set, its entries are restored; what other objects hold
    is not.

    Args:
        module: As it is now.
    """

    def __init__(self, module: nn.Module) -> None:
        self.has_gradients = torch.is_grad_enabled()
        self.dtype = torch.get_default_dtype()
        self.attributes: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self.structure: list[tuple[Parts, Parts]] = []
        self.nonempty: list[tuple[Container, Container]] = []
        self.empty: list[Container] = []
        self.parts = list(module.modules())
        for part in self.parts:
            attributes = dict(vars(part))
            self.attributes.append((vars(part), attributes))
            for name, value in attributes.items():
                if type(value) not in (dict, OrderedDict, list, set):
                    continue
                if name in STRUCTURE:
                    self.structure.append((value, value.copy()))
                elif value:
                    self.nonempty.append((value, value.copy()))
                else:
                    self.empty.append(value)  # most of them hooks
        self.containers = [container for container, _ in self.structure]
        self.held = self._held()
        tensors = module.state_dict(keep_vars=True).values()
        self.storages = [(tensor, tensor.detach()) for tensor in tensors]
        self.addresses = self._addresses()
        self.trained = [(tensor, tensor.requires_grad) for tensor in tensors]
        self.non_persistent = [
            (buffer, buffer.clone()) for part in module.modules() for buffer in _non_persistent(part)
        ]

    def has_same_structure(self) -> bool:
        """Whether the very parts, parameters and buffers are there, each where it lay."""
        return self._held() == self.held and self._addresses() == self.addresses

    def _held(self) -> list[Any]:
        """Names and identities of all parts, parameters and buffers."""
        return [*chain.from_iterable(self.containers), *map(id, chain.from_iterable(map(dict.values, self.containers)))]

    def _addresses(self) -> list[int]:
        return [tensor.data_ptr() for tensor, _ in self.storages]

    def restore(self) -> None:
        """Give every part its attributes, parts and tensors back; mostly everything is as it was."""
        for own, attributes in self.attributes:
            if not are_same(own, attributes):
                _refill(own, attributes)
        self.restore_structure()
        if any(self.empty):
            for container in self.empty:
                container.clear()
        for container, content in self.nonempty:
            if not are_same(container, content):
                _refill(container, content)
        for tensor, requires_grad in self.trained:
            if tensor.requires_grad != requires_grad:
                tensor.requires_grad_(requires_grad)
        for buffer, before in self.non_persistent:
            if not _is_equal(buffer, before):
                buffer.data = before.clone()

    def restore_structure(self) -> None:
        """Give every part its parts, parameters and buffers back, each where it lay; whether they train stays."""
        if self._held() != self.held:
            for container, content in self.structure:
                _refill(container, content)
        for (tensor, place), address in zip(self.storages, self.addresses, strict=True):
            if tensor.data_ptr() != address:
                tensor.data = place


def client_failure(error: BaseException) -> Failure:
    """Why a client is left out."""
    found = failure(error)
    found.is_usage = isinstance(error, UsageError)
    return found


def _non_persistent(part: nn.Module) -> list[Tensor]:
    found = [part._buffers.get(name) for name in part._non_persistent_buffers_set]
    return [buffer for buffer in found if buffer is not None]


def are_same(now: Container, before: Container) -> bool:
    """Whether a container holds what it held; values that are no longer the same object are compared."""
    try:
        return bool(now == before)
    except Exception:  # tensors and arrays have no single truth: they are others
        return False


def _refill(container: Container, content: Container) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)  # type: ignore[arg-type]  # of its own kind


def _is_equal(now: Tensor, before: Tensor) -> bool:
    return now.dtype == before.dtype and torch.equal(now, before)


class LiveModule:
    """The module that trains, and what is needed to put any client's state into it.

    Args:
        module: The method, as its user made it.
        seed: Of the run; a client's own networks are drawn from it.
        layout: In which convolutions compute in fast mode.
    """

    def __init__(self, module: FederatedModule, seed: int, layout: torch.memory_format = torch.channels_last) -> None:
        self.module = module
        self.seed = seed
        self.client: Client | None = None  # whose state was loaded last
        self.builds_clients = is_overridden("configure_client", module, FederatedModule)
        if self.builds_clients:
            module.to(dtype=module.dtype)  # as what is built for a client is
        settle_modes(module)
        self._modes = modes_of(module)
        self.layout = layout
        self.original = ModuleSnapshot(module)
        self.parts = dict(module.named_modules())
        self.drawn: set[str] | None = None  # names of what `configure_client` draws for clients with common networks
        self.has_own_networks = False  # whether the client whose state was loaded last has networks of its own
        self.nothing_received: State = {}
        self._tensors = self.tensors()  # between clients the structure is always the same

    def snapshot(self) -> ModuleSnapshot:
        """Of the module as it is between clients."""
        self.unload_client()
        return ModuleSnapshot(self.module)

    @contextmanager
    def restored(self, before: ModuleSnapshot) -> Iterator[None]:
        """Within, a client's code runs; afterwards process and module are as they were before it."""
        try:
            yield
        finally:
            self.restore(before)

    def restore(self, before: ModuleSnapshot) -> None:
        """Undo what a client's code may have changed: gradient mode, default dtype, the module but for its values."""
        if torch.is_grad_enabled() != before.has_gradients:
            torch.set_grad_enabled(before.has_gradients)
        if torch.get_default_dtype() != before.dtype:
            torch.set_default_dtype(before.dtype)
        self.unload_client()
        before.restore()

    def unload_client(self) -> None:
        """No client's state is loaded any more."""
        self.module.client = None
        self.module.received = self.nothing_received

    def tensors(self) -> State:
        """The live tensors, by name."""
        return self.module.state_dict(keep_vars=True)

    def load(self, state: State) -> None:
        """Copy values into the live tensors of the same names, in the method's own structure if a client's differs."""
        live = self.tensors()
        if self.builds_clients and any(name in live and live[name].shape != state[name].shape for name in state):
            self.original.restore_structure()
            live = self.tensors()
        copy_into(live, state)

    def load_client(
        self, client: Client, initial: State, server: State, personal: State, prefer: Literal["server", "personal"]
    ) -> None:
        """Load a client's state in layers, initial below server and personal; `prefer` says which of these two wins."""
        self.client = client
        self.module.client = client
        self.reset_modes()
        top = {**server, **personal} if prefer == "personal" else {**personal, **server}
        live = self._tensors
        if self.builds_clients:
            self.original.restore_structure()
            self.has_own_networks = not has_common_networks(self.module, client)
            if self.has_own_networks:
                self._build(client)
                live = self.tensors()
                # What was built anew keeps its own values; the rest still holds the last client's.
                initial = {name: initial[name] for name, tensor in live.items() if tensor is self._tensors.get(name)}
            elif self.drawn is None or not self.drawn <= top.keys():
                initial = {**initial, **self._draw(client)}
        copy_into(live, {**initial, **top})
        for tensor in live.values():
            tensor.grad = None

    def reset_modes(self) -> None:
        """Training and evaluation mode as the method was made with; local training may have changed them."""
        restore_modes(self._modes)

    def _draw(self, client: Client) -> State:
        """Initial values of a client that has the method's own networks, drawn by its own seed."""
        self._build(client)
        drawn = {name: tensor for name, tensor in self.tensors().items() if tensor is not self._tensors.get(name)}
        self.drawn = set(drawn)
        self.original.restore_structure()
        return drawn

    def _build(self, client: Client) -> None:
        module = self.module
        with isolated(derive(self.seed, "client", client.id)), refusing_logs(module, "configure_client"):
            module.configure_client(client)
        settle_modes(module)
        module.to(device=module.device, dtype=module.dtype)
        if module.fast:
            lay_out(module, self.layout)
