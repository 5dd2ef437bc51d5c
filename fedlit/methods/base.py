"""The base class of methods: an ordinary LightningModule that also declares which state is shared.

The same module trains under a plain ``lightning.Trainer``, as one client that owns all data, and in a `Federation`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from inspect import cleandoc, signature
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
from fedlit.methods.factories import ClientOptimizers, check_builders, check_choices, for_client
from fedlit.methods.stage import Stage
from fedlit.tasks import Classification, Task

OF_THE_TASK = ("loss", "metrics")
PER_CLIENT = {"client_networks", "client_optimizers"}  # arguments of a constructor that choose for some clients
OF_LOCAL_TRAINING = frozenset({"client", "stage", "received", "_log_sink", "_trainer", "_fabric"})  # set anew in each
# Arguments that most methods have, for docstrings that leave them out.
COMMON_ARGS = {
    "network": "Builds the network.",
    "optimizer": "Builds a client's optimiser from the parameters.",
    "weighting": "A client counts by its `examples`, or all count the same (`uniform`).",
    "client_networks": "Another network for some clients: a list with one for each, or a mapping from client id.",
    "client_optimizers": "Another optimiser for some clients: a list with one for each, or a mapping from client id.",
    "task": "What outputs are for, of fedlit.tasks; classification by default.",
}
PARTS = (nn.Module, Tensor)
Weighting = Literal["examples", "uniform"]


@dataclass(frozen=True)
class Card:
    """A method's entry in `fedlit methods` and in the docs, declared by its class as `card`.

    Attributes:
        invariant: The special case in which it is a simpler method.
        travels: What a client sends and receives.
        stays: What a client keeps for itself.
        paper: Authors and year; None for a baseline.
        link: Address of the paper.
        stages: Names of its stages, in order.
        recipes: Recipes that come with fedlit.
        tasks: Names of the tasks that it supports, as in fedlit.tasks; any by default.
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
    """The global network; a method with several networks overrides `forward` or `global_model` instead."""

    shared: tuple[str, ...] = ("",)
    """Name prefixes of the state that travels; `("",)` is everything, `()` nothing."""

    server_only: tuple[str, ...] = ()
    """Name prefixes of what only the server has; it never travels."""

    download_only: tuple[str, ...] = ()
    """Name prefixes of what clients receive but do not send back; `aggregate` renews it."""

    upload_only: tuple[str, ...] = ()
    """Name prefixes of what clients send and the server does not keep, such as a buffer that `on_client_end` fills.

    Local training begins with its initial value; `aggregate` finds it in the uploads.
    """

    collected: tuple[str, ...] = ()
    """Name prefixes of what a client uploads once, in a stage that collects; the server keeps each client's upload."""

    part_of: str | None = None
    """The method that this is a part of and cannot be run without."""

    labelled_pool: bool = False
    """Whether clients may train on the labels of the public pool."""

    wants_index: bool = False
    """Whether a batch also has its samples' positions among the client's: `(x, y, index)`."""

    weighting: Weighting = "examples"
    """Whether uploads count by the clients' examples, or all the same."""

    fast: bool = False
    """Whether results may round differently if that is faster; set by `trainer.fast`."""

    card: Card | None = None
    """Its entry in `fedlit methods`."""

    num_clients: int = 1
    """Clients that may take part in rounds that average; set by the federation, and 1 under a plain Trainer."""

    monitor: str | None = None
    """What best.ckpt is the best of, unless `trainer.monitor` is set; None is the first of `metrics`, on own data."""

    task: Task = Classification()
    """The loss, metrics and predictions."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.__doc__ = _with_common_args(cls)

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
        if self.part_of is not None:
            kind = type(self).__name__
            raise ValueError(f"`model`: {kind} is a part of {self.part_of}; give that, it cannot be run by itself.")
        for name in PER_CLIENT & signature(type(self)).parameters.keys():
            check_choices(f"model.{name}", getattr(self, name, None), data.num_clients)
        if type(self).client_weight is FederatedModule.client_weight:  # else it may mean anything
            check_choice("model.weighting", self.weighting, Weighting)

    def configure_stages(self) -> list[Stage]:
        """The stages of the method, in order; by default one that federates."""
        return [Stage("federate")]

    def select_clients(self, round: int, candidates: Sequence[int]) -> Sequence[int] | None:
        """The clients of a round that averages, chosen from the candidates; None leaves it to `trainer.fraction_fit`.

        The module holds the server's state, so that what the choice depends on can be a `server_only` buffer.
        """
        return None

    def configure_client(self, client: Client) -> None:
        """Build this client's own submodules; runs under the client's own seed before local training."""

    def on_client_start(self, client: Client | None) -> None:
        """Called when the client's state is loaded; take frozen copies here (keep them out of the state dict).

        Under a plain Trainer the client is None.
        """

    def on_client_end(self, client: Client) -> None:
        """Called after local training, before the upload is taken."""

    def earlier_uploads(self) -> dict[int, State]:
        """Uploads of clients that do not train again, by client id."""
        return {}

    def on_server_start(self, server: Server, uploads: Mapping[int, State]) -> None:
        """Called before the server trains, with the uploads by client id: all that were collected, or this round's."""

    def client_weight(self, client: Client) -> float:
        """The weight of this client: its number of opted-in samples, or 1."""
        if self.weighting == "examples":
            return client.num_opted_in
        return 1.0

    def check_upload(self, client: Client, upload: State, most_steps: int) -> None:
        """Refuse values that no client can have sent, such as a count below 0; the client is left out of the round.

        Names, shapes, dtypes, finiteness and the weight are checked for every method.

        Args:
            client: The sender.
            upload: What it sends.
            most_steps: Most batches that local training can have.
        """

    def download(self, client: Client, current: State, uploads: Mapping[int, State]) -> State:
        """What the server sends this client, by default the shared state; runs on the server, with its state.

        Entries of the method's state are loaded; others are in `self.received` during local training. A client uploads
        the shared entries that it holds: those it was sent, or its last upload where that is kept. A client without an
        upload must be sent its first state. Shapes may differ from the server's if `configure_client` builds such
        networks; then `aggregate` must be overridden, too.

        Args:
            client: Trains next, or is evaluated.
            current: The shared state, which every client is sent by default.
            uploads: The clients' last uploads, if the stage has `keep_uploads`.
        """
        return current

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        """The new global state from the uploads, which come one by one in client order, and the current one."""
        return self.combine(uploads, current)

    def combine(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        """Combine uploads by `trainer.aggregator`, or their mean, for an `aggregate` of your own.

        Rules get what is shared, and nothing that is `upload_only`.
        """
        if self.upload_only:
            uploads = (self._only_shared(upload) for upload in uploads)
        return self._rule(uploads, current)

    def _only_shared(self, upload: Upload) -> Upload:
        shared = {name: tensor for name, tensor in upload.state.items() if not name.startswith(self.upload_only)}
        return replace(upload, state=shared)

    def global_model(self) -> nn.Module:
        """The global network; evaluated as `global`, and as `trained` right after local training.

        By default `network`, or the method itself, by its own `forward`, if it has no `network`.
        """
        return getattr(self, "network", self)

    def forward(self, x: Any, /) -> Any:
        """A client's own model; evaluated as `personal`."""
        network = self.global_model()
        if network is self:
            raise TypeError(f"{type(self).__name__} must build `self.network`, or override `forward`")
        return applied(network, x)

    def loss(self, output: Any, target: Any) -> Tensor:
        """The mean loss of a batch, in training, early stopping and evaluation."""
        return task_of(self).loss(output, target)

    def metrics(self) -> dict[str, Metric]:
        """Metrics beside the loss, by name; best.ckpt is the best of the first."""
        return task_of(self).metrics()

    def parameters_of(self, client: Client | None) -> Iterable[nn.Parameter] | Iterable[dict[str, Any]]:
        """The parameters of a client's optimiser, or groups of them, each clipped by itself."""
        return (p for p in self.parameters() if p.requires_grad)

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        x, y = batch
        loss = loss_of(self)(self(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_loss(self, z: Any, y: Any) -> Tensor:
        """The loss that early stopping watches."""
        return loss_of(self)(z, y)

    def personalise(self, client: Client) -> None:
        """Adapt a client's model before it is evaluated, exported or predicts; its state is loaded, gradients are on.

        Changes do not last. A method that overrides this has a `personal` model for every client.
        """

    def probe(self, client: Client) -> dict[str, float]:
        """Further numbers of a client's model, such as the mean of a gate, recorded beside its metrics."""
        return {}

    def on_fit_start(self) -> None:
        """Under a plain Trainer, all of training is one local training; a federation calls `on_client_start` itself."""
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
        """Built at the first use, under a Trainer; submodules, so that Lightning resets them."""
        if not hasattr(self, "_evaluated"):
            own = {key: metrics_of(self) for key in ("val", "test")}
            parts = {key: nn.ModuleList(metrics.values()) for key, metrics in own.items()}
            self._evaluated = nn.ModuleDict(parts).to(self.device)
            self._evaluated_names = list(own["val"])
        metrics: Any = self._evaluated[prefix]
        return zip(self._evaluated_names, metrics, strict=True)

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, PARTS) and "_modules" not in vars(self):
            raise ValueError(f"`{type(self).__name__}.__init__` must call `super().__init__(optimizer)` first.")
        if name in OF_LOCAL_TRAINING and name in vars(self) and not isinstance(value, PARTS):
            vars(self)[name] = value  # no part of the module, which a module would look for in four places
            return
        super().__setattr__(name, value)
        if name in OF_THE_TASK and isinstance(value, nn.Module):
            vars(self)[name] = value  # else the class's own of this name would hide a `self.loss = nn.MSELoss()`

    def log(self, name: str, value: Any, *args: Any, **kwargs: Any) -> None:
        """As in Lightning; in a federation, the mean over local training (or `reduce_fx`) is recorded for the client.

        Works in `aggregate` and `probe`, too; elsewhere in a federation it is refused.
        """
        if self._log_sink is not None:
            self._log_sink(name, value, *args, **kwargs)
        elif self._trainer is not None and self._current_fx_name is not None:  # a child's step is none of the Trainer's
            super().log(name, value, *args, **kwargs)

    def log_dict(self, dictionary: Mapping[str, Any] | MetricCollection, *args: Any, **kwargs: Any) -> None:
        for name, value in dictionary.items():
            self.log(name, value, *args, **kwargs)


def _with_common_args(method: type) -> str | None:
    """A class docstring, which help and pages show, with the arguments that it shares with most methods."""
    text = cleandoc(method.__doc__ or "")
    if not text or "__init__" not in vars(method):
        return method.__doc__
    title, section, others = text.partition("\n\nArgs:\n")
    names = signature(method.__init__).parameters.keys() & COMMON_ARGS.keys()  # type: ignore[misc]
    lines = [f"    {name}: {COMMON_ARGS[name]}" for name in COMMON_ARGS if name in names]
    missing = [line for line in lines if f"\n{line.partition(':')[0]}:" not in text]
    if not missing:
        return text
    return title + "\n\nArgs:\n" + "\n".join(missing) + (f"\n{others}" if section else "\n")


def loss_of(method: FederatedModule) -> Callable[[Any, Any], Tensor]:
    """A method's `loss`; ignores an attribute of this name that is not callable."""
    found = method.loss
    if callable(found):
        return found
    return MethodType(type(method).loss, method)


def task_of(method: FederatedModule) -> Task:
    """A method's `task`; ignores an attribute of this name that is no `Task`."""
    found = method.task
    if isinstance(found, Task):
        return found
    return FederatedModule.task


def metrics_of(method: FederatedModule) -> dict[str, Metric]:
    """The class's own `metrics`; ignores an attribute of this name."""
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
        found = [declared for declared in ONE_PLACE if name.startswith(getattr(model, declared))]
        if len(found) > 1:
            raise ValueError(f"`model`: {name!r} of {method} is both `{found[0]}` and `{found[1]}`; choose one.")
