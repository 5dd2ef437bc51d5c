"""The contract of a method: an ordinary LightningModule that also says what of it is shared.

The same module trains under a plain ``lightning.Trainer``, as one client that owns all data, and in
a `Federation`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import signature
from types import MethodType
from typing import Any, Literal

from lightning.pytorch import LightningModule
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim import Optimizer
from torchmetrics import Metric, MetricCollection

from fedlit.aggregation import Mean, Rule, State, Upload
from fedlit.bounds import check_choice, check_kind
from fedlit.data.client import Client, Server
from fedlit.data.federated import FederatedData
from fedlit.inputs import applied, batch_size

# All of them, used here or not: methods written for 0.1 import them from this module.
from fedlit.methods.factories import (  # noqa: F401
    ClientNetworks,
    ClientOptimizers,
    NetworkFactory,
    build,
    check_builders,
    check_choices,
    for_client,
    kind,
)
from fedlit.methods.stage import Stage
from fedlit.methods.states import copy_into, frozen, record, twin  # noqa: F401
from fedlit.tasks import Classification, Task

OF_THE_TASK = ("loss", "metrics")
PER_CLIENT = {"client_networks", "client_optimizers"}  # what a constructor calls so is for some clients by their ids
OF_LOCAL_TRAINING = frozenset({"client", "stage", "received", "_log_sink", "_trainer", "_fabric"})  # set anew in each
PARTS = (nn.Module, Tensor)
Weighting = Literal["examples", "uniform"]


@dataclass(frozen=True)
class Card:
    """What `fedlit methods` and the README say of a method, declared by its class as `card`.

    Attributes:
        invariant: The special case in which it is a simpler method.
        travels: What crosses a client's border.
        stays: What a client keeps for itself.
        paper: Authors and year; none is a baseline.
        link: Where the paper is.
        stages: Names of its programme, in order.
        recipes: That come with fedlit.
        tasks: Names of the tasks that it is for, as fedlit.tasks has them; any by default.
        use: When to use it, and what it costs.
    """

    invariant: str
    travels: str
    stays: str = "nothing"
    paper: str | None = None
    link: str | None = None
    stages: tuple[str, ...] = ("federate",)
    recipes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    use: str = ""


class FederatedModule(LightningModule):
    """Base of every method: override what your method does differently.

    Args:
        optimizer: Builds a client's optimiser from the parameters.
        client_optimizers: Another optimiser for some clients: a list with one for each, or a
            mapping from client id.
        task: What outputs are for; classification by default.
    """

    network: nn.Module
    """What all clients agree on; a method that has several networks overrides `forward` or `global_model` instead."""

    shared: tuple[str, ...] = ("",)
    """Name prefixes of the state that travels; `("",)` is everything, `()` nothing."""

    server_only: tuple[str, ...] = ()
    """Name prefixes of what the server keeps for itself beside the shared state; it never travels."""

    download_only: tuple[str, ...] = ()
    """Name prefixes of what the server holds and clients receive, but do not send back; `aggregate` renews it."""

    upload_only: tuple[str, ...] = ()
    """Name prefixes of what clients send and the server does not hold, such as a buffer that `on_client_end` fills.

    Local training begins with its initial value; in `aggregate` it stands in the uploads, beside what is shared.
    """

    collected: tuple[str, ...] = ()
    """Name prefixes of what a client uploads once, in a stage that collects; the server keeps every client's apart."""

    labelled_pool: bool = False
    """Whether the labels of the public pool are public, too: only then clients may train on them."""

    wants_index: bool = False
    """Whether a batch also holds its samples' positions among the client's: `(x, y, index)`."""

    weighting: Weighting = "examples"
    """What a client's upload counts by."""

    fast: bool = False
    """Whether other rounding is welcome if it is faster; `trainer.fast` says so."""

    card: Card | None = None
    """What `fedlit methods` says of it."""

    num_clients: int = 1
    """Clients that may take part in what is averaged; the federation sets it, under a plain Trainer there is one."""

    monitor: str | None = None
    """What best.ckpt is the best of, unless `trainer.monitor` says; None is the first of `metrics`, on clients' own."""

    task: Task = Classification()
    """What outputs are for: the loss, the metrics and what a prediction means."""

    def __init__(
        self, optimizer: OptimizerCallable, client_optimizers: ClientOptimizers = None, task: Task | None = None
    ) -> None:
        super().__init__()
        check_builders(optimizer, client_optimizers)
        if task is not None:
            check_kind("model.task", task, Task, "a task of fedlit.tasks, such as Regression()")
            self.task = task
        self.optimizer = optimizer
        self.client_optimizers = client_optimizers
        self.client: Client | None = None
        self.stage: Stage | None = None
        self.received: State = {}  # in local training: what `download` gave beside entries of the state
        self._log_sink: Callable[..., None] | None = None
        self._rule: Rule = Mean()

    def is_shared(self, name: str) -> bool:
        """Whether this entry of the state dict travels both ways."""
        others = self.server_only + self.download_only + self.upload_only
        return name.startswith(self.shared) and not name.startswith(others)

    def check(self, data: FederatedData) -> None:
        """Refuse data that this method cannot use, before the first round, in the user's words."""
        for name in PER_CLIENT & signature(type(self)).parameters.keys():
            check_choices(f"model.{name}", getattr(self, name, None), data.num_clients)
        if type(self).client_weight is FederatedModule.client_weight:  # else it may mean anything
            check_choice("model.weighting", self.weighting, Weighting)

    def configure_stages(self) -> list[Stage]:
        """The programme of the method: one federated stage, unless it is overridden."""
        return [Stage("federate")]

    def select_clients(self, round: int, candidates: Sequence[int]) -> Sequence[int] | None:
        """Who takes part in a round that averages, of those who may; None leaves it to `trainer.fraction_fit`.

        The module holds the server's state, so that what the choice depends on can be a `server_only` buffer.
        """
        return None

    def configure_client(self, client: Client) -> None:
        """Build this client's own submodules; runs under the client's own seed before local training."""

    def on_client_start(self, client: Client | None) -> None:
        """The client's state is loaded; take frozen copies here (keep them out of the state dict).

        None is whoever owns all data under a plain Trainer.
        """

    def on_client_end(self, client: Client) -> None:
        """Local training is over; the upload is taken next."""

    def earlier_uploads(self) -> dict[int, State]:
        """Uploads of clients that need not train again, by client id."""
        return {}

    def on_server_start(self, server: Server, uploads: Mapping[int, State]) -> None:
        """The server is about to train; what clients uploaded, by client id: all that is collected, or this round's."""

    def client_weight(self, client: Client) -> float:
        """How much this client counts: by its opted-in samples, or as much as any other."""
        if self.weighting == "examples":
            return client.num_opted_in
        return 1.0

    def check_upload(self, client: Client, upload: State, most_steps: int) -> None:
        """Refuse what no client can have sent, such as a count below 0; the client is left out of the round.

        Names, shapes, dtypes, finiteness and the weight are checked for every method.

        Args:
            client: Who sends it.
            upload: What it sends.
            most_steps: Batches that local training can have.
        """

    def download(self, client: Client, current: State, uploads: Mapping[int, State]) -> State:
        """What the server sends this client, in place of what is shared; it runs on the server, with its state.

        Entries of the method's state are loaded; others are in `self.received` during local training. A client uploads
        what it holds of the shared state: what it was sent, or has uploaded before where that is kept. Who has uploaded
        nothing yet must be sent what it begins with. Entries may be of other shapes than the server's where
        `configure_client` builds such; then `aggregate` is the method's own.

        Args:
            client: Who trains next, or is evaluated.
            current: What everybody would be sent.
            uploads: The last upload of every client, where the stage says `keep_uploads`; of who has one.
        """
        return current

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        """The new global state from the uploads, which come one by one in client order, and the current one."""
        return self.combine(uploads, current)

    def combine(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        """The uploads by the rule of the federation, for your own `aggregate`: `trainer.aggregator`, or their mean.

        Rules see what is shared, and nothing that is `upload_only`.
        """
        if self.upload_only:
            uploads = (self._only_shared(upload) for upload in uploads)
        return self._rule(uploads, current)

    def _only_shared(self, upload: Upload) -> Upload:
        shared = {name: tensor for name, tensor in upload.state.items() if not name.startswith(self.upload_only)}
        return replace(upload, state=shared)

    def global_model(self) -> nn.Module:
        """The network that all clients agree on; evaluated as `global`, and as `trained` right after local training.

        It is `network`, or the method itself, by its own `forward`, if it has no `network`.
        """
        return getattr(self, "network", self)

    def forward(self, x: Any, /) -> Any:
        """The network that a client uses for itself; evaluated as `personal`."""
        network = self.global_model()
        if network is self:
            raise TypeError(f"{type(self).__name__} must build `self.network`, or override `forward`")
        return applied(network, x)

    def loss(self, output: Any, target: Any) -> Tensor:
        """The mean over a batch, of what a network gives and the targets: what is trained, watched and reported."""
        return task_of(self).loss(output, target)

    def metrics(self) -> dict[str, Metric]:
        """What is measured beside the loss, by name; the first says what best.ckpt is the best of."""
        return task_of(self).metrics()

    def parameters_of(self, client: Client | None) -> Iterable[nn.Parameter] | Iterable[dict[str, Any]]:
        """What a client's optimiser trains; in groups, if you like, each clipped by itself."""
        return (p for p in self.parameters() if p.requires_grad)

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        x, y = batch
        loss = loss_of(self)(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_loss(self, z: Any, y: Any) -> Tensor:
        """What early stopping watches, of outputs and targets."""
        return loss_of(self)(z, y)

    def personalise(self, client: Client) -> None:
        """Adapt a client's model before it is evaluated, exported or predicts: its state is loaded, gradients are on.

        What it changes is forgotten afterwards. A method that overrides this has a `personal` model for every client.
        """

    def probe(self, client: Client) -> dict[str, float]:
        """More numbers of a client's model, such as the mean of a gate; recorded beside its metrics."""
        return {}

    def on_fit_start(self) -> None:
        """Under a plain Trainer, all of training is one local training; in a federation it has begun already."""
        if self._log_sink is None:
            self.num_clients = 1
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

    def _log_evaluation(self, prefix: Literal["val", "test"], batch: tuple[Any, Any]) -> None:
        x, y = batch
        z = self(x)
        size = batch_size(x, y)
        self.log(f"{prefix}_loss", loss_of(self)(z, y), batch_size=size)
        for name, metric in self._metrics_of(prefix):
            metric.update(*task_of(self).measured(z, y))
            self.log(f"{prefix}_{name}", metric, prog_bar=True, batch_size=size)

    def _metrics_of(self, prefix: Literal["val", "test"]) -> Iterator[tuple[str, Metric]]:
        """Made when they are first asked for, under a Trainer; parts of the module, so that Lightning resets them."""
        if not hasattr(self, "_evaluated"):
            own = {key: metrics_of(self) for key in ("val", "test")}
            parts = {key: nn.ModuleList(metrics.values()) for key, metrics in own.items()}
            self._evaluated = nn.ModuleDict(parts).to(self.device)
            self._evaluated_names = list(own["val"])
        metrics: Any = self._evaluated[prefix]
        return zip(self._evaluated_names, metrics, strict=True)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in OF_LOCAL_TRAINING and name in vars(self) and not isinstance(value, PARTS):
            vars(self)[name] = value  # no part of the module, which a module would look for in four places
            return
        super().__setattr__(name, value)
        if name in OF_THE_TASK and isinstance(value, nn.Module):
            vars(self)[name] = value  # else the class's own of this name would hide a `self.loss = nn.MSELoss()`

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """As in Lightning; in a federation, the mean over local training (or `reduce_fx`) is recorded for the client.

        Also in `aggregate` and `probe`; elsewhere nobody would record it, and it is refused.
        """
        if self._log_sink is not None:
            self._log_sink(name, value, *args, **kwargs)
        elif self._trainer is not None and self._current_fx_name is not None:  # a child's step is none of the Trainer's
            super().log(name, value, *args, **kwargs)

    def log_dict(self, dictionary: Mapping[str, Any] | MetricCollection, *args: Any, **kwargs: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)


def loss_of(method: FederatedModule) -> Callable[[Any, Any], Tensor]:
    """A method's `loss`; an attribute of this name that is not callable is ignored."""
    found = method.loss
    if callable(found):
        return found
    return MethodType(type(method).loss, method)


def task_of(method: FederatedModule) -> Task:
    """A method's `task`; an attribute of this name that is no `Task` is ignored."""
    found = method.task
    if isinstance(found, Task):
        return found
    return FederatedModule.task


def metrics_of(method: FederatedModule) -> dict[str, Metric]:
    """What the class returns from `metrics`; an attribute of this name is ignored."""
    return type(method).metrics(method)


ONE_PLACE = ("download_only", "upload_only", "server_only")  # an entry is in one of them, and then not shared
DECLARED = ("shared", *ONE_PLACE, "collected")  # attributes of name prefixes


def check_travels(model: FederatedModule) -> None:
    """Refuse prefixes that are not a tuple or match nothing, entries that are declared twice, and extra state."""
    method = type(model).__name__
    names = list(model.state_dict())
    for declared in DECLARED:
        prefixes = getattr(model, declared)
        if not isinstance(prefixes, tuple) or not all(isinstance(prefix, str) for prefix in prefixes):
            raise ValueError(
                f'`model`: `{declared}` of {method} must be a tuple of name prefixes, such as ("network.",), '
                f"got {prefixes!r}."
            )
        for prefix in prefixes:
            is_required = prefix and declared != "collected"  # an empty one is everything, be it nothing
            if is_required and not any(name.startswith(prefix) for name in names):
                raise ValueError(f"`model`: `{declared}` of {method} names {prefix!r}, but nothing in its state does.")
    for name in names:
        if name.rpartition(".")[2] == "_extra_state":
            raise ValueError(
                f"`model`: {method} has {name!r}, which could not be shared: leave out `get_extra_state`; what is to "
                "travel is a buffer, and plain attributes that the server's side changes are saved by themselves."
            )
        said = [declared for declared in ONE_PLACE if name.startswith(getattr(model, declared))]
        if len(said) > 1:
            raise ValueError(f"`model`: {name!r} of {method} is said to be both `{said[0]}` and `{said[1]}`; say one.")
