"""The one live module of a process: clients' states are put into it in turn."""

from typing import Literal

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.engine.module.log_sinks import refused
from fedlit.engine.module.modes import modes_of, restore, settle
from fedlit.fast.memory import lay_out
from fedlit.methods.base import FederatedModule, copy_into, twin
from fedlit.rng import derive, isolated


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
        settle(module)
        self._modes = modes_of(module)
        self.layout = layout
        # To mend the module after a client has broken it; stages may hold its parts, so these must stay the same.
        self.pristine = twin(module)
        self.parts = dict(module.named_modules())
        self._builds_clients = is_overridden("configure_client", module, FederatedModule)
        self._dtypes = {tensor.dtype for tensor in self.tensors().values()}

    def has_its_dtypes(self) -> bool:
        """Whether nobody has moved the module to others."""
        return {tensor.dtype for tensor in self.tensors().values()} <= self._dtypes

    def tensors(self) -> State:
        """The live tensors, by name."""
        return self.module.state_dict(keep_vars=True)

    def put(self, state: State) -> None:
        """Copy values into the live tensors of the same names, in the method's own structure if a client's differs."""
        live = self.tensors()
        if self._builds_clients and any(name in live and live[name].shape != state[name].shape for name in state):
            self.mend()
            live = self.tensors()
        copy_into(live, state)

    def enter(
        self, client: Client, initial: State, server: State, personal: State, prefer: Literal["server", "personal"]
    ) -> None:
        """Load a client's state in layers, initial below server and personal; `prefer` says which of these two wins."""
        before = self.tensors()
        if not self._builds_clients and not _fits(before, initial):  # whoever looked at it last has changed it
            self.mend()
            before = self.tensors()
        live = before
        self.client = client
        self.module.client = client
        self.reset_modes()
        if self._builds_clients:
            self._build(client)
            live = self.tensors()
        top = {**server, **personal} if prefer == "personal" else {**personal, **server}
        # What configure_client did not rebuild still holds the last client's values.
        stale = {name: initial[name] for name, tensor in live.items() if name not in top and tensor is before.get(name)}
        copy_into(live, {**stale, **top})
        for tensor in live.values():
            tensor.grad = None

    def reset_modes(self) -> None:
        """Training and evaluation mode as the method was made with: a visit may have changed them."""
        restore(self._modes)

    def _build(self, client: Client) -> None:
        module = self.module
        with isolated(derive(self.seed, "client", client.id)), refused(module, "configure_client"):
            module.configure_client(client)
        settle(module)
        module.to(device=module.device, dtype=module.dtype)
        if module.fast:
            lay_out(module, self.layout)

    def trained(self) -> dict[str, bool]:
        """Which parameters train; a callback may have frozen some."""
        return {name: parameter.requires_grad for name, parameter in self.module.named_parameters()}

    def mend(self, trained: dict[str, bool] | None = None) -> None:
        """Give the module its first structure back, part by part; values are loaded with the next state.

        Args:
            trained: Which parameters did before it was broken; by default as now.
        """
        if trained is None:
            trained = self.trained()
        for path, fresh in twin(self.pristine).named_modules():
            part = self.parts[path]
            part._parameters = fresh._parameters
            part._buffers = fresh._buffers
            part._modules = {name: self.parts[f"{path}.{name}".lstrip(".")] for name in fresh._modules}
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(trained.get(name, parameter.requires_grad))
        self.module.to(self.module.device)


def _fits(live: State, initial: State) -> bool:
    """Whether a state has the dtypes and devices that the method was made with."""
    return all(
        name in live and live[name].dtype == tensor.dtype and live[name].device == tensor.device
        for name, tensor in initial.items()
    )
