"""The one live module of a process: clients' states are put into it in turn."""

from collections.abc import Callable
from typing import Literal, TypeVar

import torch
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.engine.module.isolation import ModuleSnapshot, failed
from fedlit.engine.module.log_sinks import refused
from fedlit.engine.module.modes import modes_of, restore, settle
from fedlit.engine.plan import Interrupted
from fedlit.fast.memory import lay_out
from fedlit.methods.base import FederatedModule, copy_into
from fedlit.records.round_record import Failure
from fedlit.rng import derive, isolated

Result = TypeVar("Result")


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
        self.original = ModuleSnapshot(module)
        self.parts = dict(module.named_modules())
        self.builds_clients = is_overridden("configure_client", module, FederatedModule)
        self.nothing_received: State = {}
        self._tensors = self.tensors()  # between clients the structure is always the same

    def snapshot(self) -> ModuleSnapshot:
        """Of the module as it is between clients."""
        self.leave()
        return ModuleSnapshot(self.module)

    def attempt(self, work: Callable[[], Result], before: ModuleSnapshot) -> Result | Failure:
        """What a client's code returns, or why it did not; afterwards process and module are as they were.

        Args:
            work: Runs the client's code.
            before: Of the module.
        """
        has_gradients = torch.is_grad_enabled()
        dtype = torch.get_default_dtype()
        try:
            return work()
        except Interrupted:  # the run is asked to stop
            raise
        except (Exception, SystemExit) as error:
            return failed(error)
        finally:
            torch.set_grad_enabled(has_gradients)
            torch.set_default_dtype(dtype)
            self.leave()
            before.restore()

    def leave(self) -> None:
        """No client's state is loaded any more."""
        self.module.client = None
        self.module.received = self.nothing_received

    def tensors(self) -> State:
        """The live tensors, by name."""
        return self.module.state_dict(keep_vars=True)

    def put(self, state: State) -> None:
        """Copy values into the live tensors of the same names, in the method's own structure if a client's differs."""
        live = self.tensors()
        if self.builds_clients and any(name in live and live[name].shape != state[name].shape for name in state):
            self.original.restore_structure()
            live = self.tensors()
        copy_into(live, state)

    def enter(
        self, client: Client, initial: State, server: State, personal: State, prefer: Literal["server", "personal"]
    ) -> None:
        """Load a client's state in layers, initial below server and personal; `prefer` says which of these two wins."""
        before = self.tensors() if self.builds_clients else self._tensors
        live = before
        self.client = client
        self.module.client = client
        self.reset_modes()
        if self.builds_clients:
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
