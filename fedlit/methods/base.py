"""The contract of a method: an ordinary LightningModule that also says what of it is shared.

The same module trains under a plain ``lightning.Trainer``, as one client that owns all data, and in a `Federation`.
"""

import copy
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics.functional.classification import multiclass_accuracy

from fedlit.aggregation import State, Upload, weighted_mean
from fedlit.data.client import Client, Server
from fedlit.methods.stage import Stage

NetworkFactory = Callable[[], nn.Module]
# Containers first and int keys: in another order the CLI saves a config that it cannot read again.
ClientNetworks = list[NetworkFactory] | dict[int, NetworkFactory] | None
ClientOptimizers = list[OptimizerCallable] | dict[int, OptimizerCallable] | None
Weighting = Literal["examples", "uniform"]


class FederatedModule(LightningModule):
    """Base of every method: override what your method does differently.

    Args:
        optimizer: Builds the optimiser of a visit from the parameters.
        client_optimizers: Another optimiser for some clients: a list with one for each, or a mapping from client id.
    """

    shared: tuple[str, ...] = ("",)
    """Name prefixes of the state that travels; `("",)` is everything, `()` nothing."""

    server_only: tuple[str, ...] = ()
    """Name prefixes of what the server keeps for itself beside the shared state; it never travels."""

    collected: tuple[str, ...] = ()
    """Name prefixes of what a client uploads once, in a stage that collects; the server keeps every client's apart."""

    wants_index: bool = False
    """Whether a batch also holds its samples' positions among the client's: `(x, y, index)`."""

    weighting: Weighting = "examples"
    """What a client's upload counts by."""

    fast: bool = False
    """Whether other rounding is welcome if it is faster; `trainer.fast` says so."""

    monitor: str | None = None
    """What best.ckpt is the best of, unless `trainer.monitor` says; None is the clients' own accuracy."""

    def __init__(self, optimizer: OptimizerCallable, client_optimizers: ClientOptimizers = None) -> None:
        super().__init__()
        self.optimizer, self.client_optimizers = optimizer, client_optimizers
        self.client: Client | None = None
        self.stage: Stage | None = None
        self._log_sink: Callable[[str, Any], None] | None = None

    def is_shared(self, name: str) -> bool:
        """Whether this entry of the state dict travels."""
        return name.startswith(self.shared) and not name.startswith(self.server_only)

    def configure_stages(self) -> list[Stage]:
        """The programme of the method: one federated stage, unless it is overridden."""
        return [Stage("federate")]

    def configure_client(self, client: Client) -> None:
        """Build this client's own submodules; runs under the client's own seed at the start of every visit."""

    def on_client_start(self, client: Client) -> None:
        """The client's state is loaded; take frozen copies here (keep them out of the state dict)."""

    def on_client_end(self, client: Client) -> None:
        """Local training is over; the upload is taken next."""

    def earlier_uploads(self) -> dict[int, State]:
        """Uploads of clients that need not train again, by client id."""
        return {}

    def on_server_start(self, server: Server, uploads: Mapping[int, State]) -> None:
        """The server is about to train, in every round of a stage on its side; what clients uploaded, by client id."""

    def client_weight(self, client: Client) -> float:
        """How much this client counts: by its shared samples, or as much as any other."""
        return client.num_opted_in if self.weighting == "examples" else 1.0

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        """The new global state from the uploads, which come one by one in client order, and the current one."""
        return weighted_mean(uploads)

    def global_model(self) -> nn.Module:
        """The network that all clients agree on; evaluated as `global`, and as `trained` right after a visit."""
        return self.network

    def forward(self, x: Tensor) -> Tensor:
        """The network that a client uses for itself; evaluated as `personal`."""
        return self.global_model()(x)

    def parameters_of(self, client: Client | None) -> Iterable[nn.Parameter] | Iterable[dict[str, Any]]:
        """What the optimiser of a visit trains; in groups, if you like, each clipped by itself."""
        return (p for p in self.parameters() if p.requires_grad)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = F.cross_entropy(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_loss(self, z: Tensor, y: Tensor) -> Tensor:
        """What early stopping watches, of outputs ``[N, C]`` and targets ``[N]``."""
        return F.cross_entropy(z, y)

    def probe(self, client: Client) -> dict[str, float]:
        """More numbers of a client's own model, such as the mean of a gate; recorded beside its accuracy."""
        return {}

    def on_fit_start(self) -> None:
        """Under a plain Trainer, training is one long visit."""
        self.on_client_start(self.client)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._log_evaluation("val", batch)

    def test_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        self._log_evaluation("test", batch)

    def predict_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        return self(batch[0])

    def configure_optimizers(self) -> Optimizer:
        chosen = for_client(self.optimizer, self.client_optimizers, self.client)
        return chosen(self.parameters_of(self.client))

    def _log_evaluation(self, prefix: str, batch: tuple[Tensor, Tensor]) -> None:
        x, y = batch
        z = self(x)
        self.log(f"{prefix}_loss", F.cross_entropy(z, y), batch_size=len(y))
        accuracy = multiclass_accuracy(z, y, num_classes=z.shape[1], average="micro")
        self.log(f"{prefix}_acc", accuracy, prog_bar=True, batch_size=len(y))

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """As in Lightning; in a federation, the mean over a visit is recorded for the client."""
        if self._log_sink is not None:
            self._log_sink(name, value)
        elif self._trainer is not None and self._current_fx_name is not None:  # a child's step is none of the Trainer's
            super().log(name, value, *args, **kwargs)

    def log_dict(self, dictionary: Mapping[str, Any], *args: Any, **kwargs: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)


def for_client(common: Any, per_client: list | dict | None, client: Client | None) -> Any:
    """The client's own choice if it has one, else the common one."""
    if per_client is None or client is None:
        return common
    if isinstance(per_client, dict):
        return per_client.get(client.id, common)
    if client.id >= len(per_client):
        raise ValueError(
            f"A list of choices per client has {len(per_client)} entries, but there is a client {client.id}."
        )
    return per_client[client.id]


def kind(choice: Any) -> Any:
    """What a choice amounts to: equal for two factories of the same call, as a configuration makes them.

    Example:
        >>> kind(partial(nn.Linear, 2)) == kind(partial(nn.Linear, 2)), kind(partial(nn.Linear, 2)) == kind(nn.Linear)
        (True, False)
    """
    return repr((choice.func, choice.args, choice.keywords)) if isinstance(choice, partial) else choice


def build(network: NetworkFactory, option: str) -> nn.Module:
    """A new network from its factory.

    Example:
        >>> build(lambda: nn.Linear(2, 1), "network")
        Linear(in_features=2, out_features=1, bias=True)
    """
    if isinstance(network, nn.Module) or not callable(network):
        raise TypeError(
            f"`{option}` must be a class or function that builds a network, so that each client can have its own; "
            f"got a ready {type(network).__name__}."
        )
    return network()


def twin(module: FederatedModule) -> FederatedModule:
    """A copy with networks of its own, on the same fabric and data."""
    shared = (module.fabric, module.client)
    return copy.deepcopy(module, {id(thing): thing for thing in shared if thing is not None})


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
def record(network: Callable[[Tensor], Tensor], client: Client | None, like: Tensor) -> Tensor | None:
    """What a frozen network says of each sample of a visit, by position; None if inputs vary. `like`: dtype, device."""
    if client is None or not client.sees_the_same_inputs:
        return None
    batches = client.train_batches()
    batches.drop_last = False
    return torch.cat([network(x.to(like)) for x, _ in batches])
