"""The state of a federation: of server and clients, the number of rounds, and the live module of this process.

It changes at the end of a round of clients (`end_client_round`) or of the server (`end_server_round`), and when a
checkpoint is resumed.
"""

import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import torch
from lightning.fabric import Fabric
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import Tensor

from fedlit.aggregation import State, Upload, defect
from fedlit.data import FederatedData
from fedlit.data.client import SERVER, Client, Server
from fedlit.engine.client_store import ClientStore, SpillStore, UploadStore, copy_to_all_ranks
from fedlit.engine.live_module import LiveModule, constant_names, frozen_names
from fedlit.engine.logged_values import refusing_logs
from fedlit.engine.metrics import MetricSet
from fedlit.engine.options import Options
from fedlit.engine.plan import ClientState, OptimizerState, UsageError
from fedlit.engine.processes import broadcast
from fedlit.engine.server_attributes import ServerAttributes
from fedlit.heads import batch_norm_names
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.best import BestTracker
from fedlit.records.rows import Row
from fedlit.rng import derive, isolated

if TYPE_CHECKING:
    from fedlit.engine.client_runner import ClientResult
    from fedlit.engine.evaluation import EvaluationResult, Scorer
    from fedlit.engine.round import ClientRound
    from fedlit.engine.uploads import RoundUpdates

Names = dict[int, tuple[str, ...]]  # of the entries of each client's state, which its host keeps


class Download(NamedTuple):
    """A download: entries of the method's state, and other tensors, which the method finds in `self.received`."""

    state: State
    received: State


class Hosts(Protocol):
    """Remote hosts on which clients train and are evaluated, and which keep their states."""

    def train(self, round: "ClientRound") -> Iterator[tuple[int, "ClientResult", Download | None]]:
        """Results in client order, without client states, and what each client was sent, if that differs."""

    def evaluate(self, scorer: "Scorer", round: int, asked: Sequence[tuple[str, int]]) -> list["EvaluationResult"]:
        """The results of evaluations, each named by what is evaluated and whose it is."""

    def commit(self, round: int, clients: Sequence[int]) -> Names:
        """The training of these clients is committed; the names of what each keeps from now on."""

    def state_dict(self) -> dict[str, Any]:
        """For a checkpoint: the last committed training of each client, and `names` of what it keeps."""

    def resume(self, kept: Mapping[str, Any]) -> Names:
        """Resume from there; what each client keeps."""


class FederationState:
    """The states of a federation.

    Args:
        fabric: Launched.
        module: The method; it becomes the one live module of this process.
        data: Set up.
        options: Of the federation.
        layout: In which convolutions compute in fast mode.

    Attributes:
        initial: The state that every client begins with.
        attributes: Of the method, that the server's side has changed.
        shared: Names of what travels both ways.
        download_only: Names of what only the server sends.
        upload_only: Names of what only clients send.
        constant: Names of what would travel, but was frozen when the run began: clients are sent it once.
        frozen: Names of other parameters that required no gradients when the run began.
        received_constants: Clients that have been sent what is constant.
        global_state: What the server holds: the shared state, what it sends beside it, and what it keeps for itself.
        collected: Uploads that the server keeps, by client; on several ranks each with the client's owner.
        memories: The client states that this rank owns; of others, the names.
        owner_ranks: On several ranks, the one that has a client's state, of clients that have one.
        uploads: The last upload of every client, where a stage keeps them.
        server_training_state: Of the optimiser of a stage that the server trains in.
        server_momenta: What `trainer.server_optimizer` holds, by the stage that averages.
        round: Rounds done so far.
        stage: Of the last round; None before the first.
        measures: What is measured of every model.
        scores: The last and the best of every metric.
        secret: The seed of noise and sampling under `trainer.privacy`, unless `noise_seed` is given.
        hosts: Where clients train, if not here.
        own_download: On a client's host, what the server sent it alone; None: the server is here.
    """

    def __init__(
        self,
        fabric: Fabric,
        module: FederatedModule,
        data: FederatedData,
        options: Options,
        layout: torch.memory_format = torch.channels_last,
    ) -> None:
        self.fabric = fabric
        self.data = data
        self.options = options
        self.live = LiveModule(module, options.seed, layout)
        self.module = module
        self.attributes = ServerAttributes(self.live.parts)
        own = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        self.initial: State = broadcast(fabric, own)
        self.live.load(self.initial)
        self.shared = shared_names(module, options.batch_norm)
        self.download_only = [name for name in self.initial if name.startswith(module.download_only)]
        self.upload_only = [name for name in self.initial if name.startswith(module.upload_only)]
        self.constant = constant_names(module)
        self.frozen = frozenset(frozen_names(module)) - set(self.constant)
        server_only = [name for name in self.initial if name.startswith(module.server_only)]
        self.server_names = [*self.shared, *self.constant, *self.download_only, *server_only]
        self.global_state = {name: self.initial[name] for name in self.server_names}
        self.client_states = ClientStore(SpillStore(options.personal_memory * 1e9, fabric.device))
        self.collected = UploadStore(self.client_states.store)
        for k, upload in module.earlier_uploads().items():  # of an earlier run, on every process
            self.collected[k] = upload
        self.owner_ranks: dict[int, int] = {}
        self.uploads = UploadStore(self.client_states.store)
        self.has_custom_download = has_custom_download(module)
        self.received_constants: set[int] = set()
        self.server_training_state = ClientState()
        self.server_optimizer_state: dict[str, OptimizerState] = {}
        self.secret: str | None = None
        if options.privacy is not None and options.privacy.needs_secret:
            self.secret = broadcast(fabric, secrets.token_hex(32))
        self.hosts: Hosts | None = None
        self.own_download: Download | None = None
        self.round = 0
        self.stage: Stage | None = None
        self.measures = MetricSet(module, options.metrics)
        self.scores = BestTracker(self.measures.directions, options.monitor or module.monitor)

    def use(self, data: FederatedData) -> None:
        """Use other data, to evaluate on them."""
        if self.round and data.num_clients != self.data.num_clients:
            raise ValueError(
                f"`data.num_clients` is {data.num_clients}, but the federation has been fitted with "
                f"{self.data.num_clients}; make another Federation for other clients."
            )
        self.data = data
        self.module.num_clients = num_sharing(data)

    @property
    def shared_state(self) -> State:
        """The server's entries that are sent and averaged."""
        return {name: self.global_state[name] for name in self.shared}

    @property
    def sent_state(self) -> State:
        """The server's entries that are sent only."""
        return {name: self.global_state[name] for name in self.download_only}

    @property
    def constant_state(self) -> State:
        """The server's entries that clients are sent once."""
        return {name: self.global_state[name] for name in self.constant}

    def expected_upload(self, k: int, sent: Download | None = None) -> State:
        """Names, shapes and dtypes of an upload, as a state; a client uploads no more than it was sent or holds."""
        shared = self.shared_state
        if sent is not None:
            held = {**self.personal(k), **sent.state}
            shared = {name: held[name] for name in self.shared if name in held}
        return {**shared, **{name: self.initial[name] for name in self.upload_only}}

    def personal(self, k: int) -> State:
        """A client's own entries: its collected upload and its client state.

        Where `download` sends each client something else, it also goes on with what it has uploaded last.
        """
        personal: State = {}
        if k in self.collected:
            personal |= self.collected[k]
        if self.has_custom_download and k in self.uploads:
            personal |= {name: tensor for name, tensor in self.uploads[k].items() if name in self.shared}
        if k in self.client_states.here:
            personal |= self.client_states[k].state
        elif self.client_states.names(k):
            raise ValueError(f"What client {k} keeps is on its own host, and nowhere else.")
        return personal

    def personal_states(self) -> dict[int, State]:
        """The own entries of every client; collective."""
        clients = sorted({*self.client_states.here, *self.owner_ranks, *self.owners()})
        copy_to_all_ranks(self, clients)
        return {k: self.personal(k) for k in clients}

    def owners(self) -> list[int]:
        """Clients that have something of their own."""
        kept = [k for k in (*self.client_states.here, *self.owner_ranks) if self.client_states.names(k)]
        uploaded = self.uploads if self.has_custom_download else ()
        return sorted({*self.collected, *kept, *uploaded})

    def has_trained(self, k: int, prefix: str) -> bool:
        """Whether a client has state of its own with this prefix; everybody has nothing in particular."""
        names = (*self.collected.names(k), *self.client_states.names(k))
        return any(name.startswith(prefix) for name in names)

    def load_client(
        self,
        k: int,
        prefer: Literal["server", "personal"],
        round: int = 0,
        sent: Download | None = None,
        client: Client | None = None,
    ) -> None:
        """Put a client's state into the live module, by default with what it would be sent now.

        `prefer` says whose values win where both have some; `client` is the same client, where it is at hand.
        """
        client = client or self.data.client(k, round)
        personal = self.personal(k)
        if sent is None and self.has_custom_download and not personal.keys() >= set(self.shared):
            sent = self.download_for(k, round)
        server = self.global_state
        if sent is not None:
            travels = {*self.shared, *self.download_only}
            unsent = {name: tensor for name, tensor in server.items() if name not in travels}
            server = {**unsent, **sent.state}
        self.live.load_client(client, self.initial, server, personal, prefer)
        self.module.received = self.live.nothing_received if sent is None else sent.received

    def download_for(self, k: int, round: int) -> Download:
        """The method's download for a client, validated and copied; the live module then holds the server's state."""
        if self.own_download is not None:
            return self.own_download
        self.load_global()
        module = self.module
        client = self.data.client(k, round)
        current = {name: tensor.clone() for name, tensor in (self.shared_state | self.sent_state).items()}
        with isolated(derive(self.options.seed, "download", round, k)), refusing_logs(module, "download"):
            given = module.download(client, current, self.uploads)
        whose = f"`download` of {type(module).__name__}, for client {k}"
        if not isinstance(given, Mapping) or not all(isinstance(value, Tensor) for value in given.values()):
            raise UsageError(f"{whose}, must give a mapping from names to tensors, got {type(given).__name__}.")
        live = module.state_dict()
        expected = {name: live.get(name, tensor) for name, tensor in given.items()}
        if self.live.builds_clients:  # clients' networks may have other shapes
            expected = {name: tensor.new_empty(given[name].shape) for name, tensor in expected.items()}
        if problem := defect(Upload(k, dict(given)), expected):
            raise UsageError(f"{whose}, gave what cannot be used: {problem}.")
        copied = {name: tensor.detach().clone() for name, tensor in given.items()}
        received = {name: copied.pop(name) for name in given if name not in live}
        return Download(copied, received)

    def server(self, round: int, limit: int | None = None) -> Server:
        """The server as the method sees it in a round; `limit` is of samples of the public pool."""
        size = len(self.data.public_pool)
        return Server(SERVER, self.data.splits.num_classes, size, size, round, data=self.data, limit=limit)

    def load_global(self) -> None:
        """Put the server's state into the live module."""
        self.module.received = self.live.nothing_received
        self.live.reset_modes()
        self.live.load(self.global_state)

    def end_client_round(
        self,
        global_state: State,
        server_training_state: ClientState,
        server_optimizer_state: dict[str, OptimizerState],
        clients: Iterable[int],
        updates: "RoundUpdates",
        uploads: UploadStore,
        elsewhere: Names,
    ) -> None:
        """Commit a round of clients; one that is interrupted before leaves no trace.

        `elsewhere` has the names of client states on hosts of their own.
        """
        self.global_state = global_state
        self.server_training_state = server_training_state
        self.server_optimizer_state = server_optimizer_state
        self.client_states.merge(updates.client_states)
        self.client_states.record_remote(elsewhere)
        self.owner_ranks |= {k: rank for k, rank in updates.owners.items() if k in updates.client_states}
        self.collected.merge(updates.collected)
        self.uploads.merge(uploads)
        if self.constant:
            self.received_constants.update(clients)

    def end_server_round(self, state: State, client_state: ClientState) -> None:
        """The server has trained what it holds."""
        self.global_state = state
        self.server_training_state = client_state

    def count_round(self, number: int, stage: Stage, rows: list[Row]) -> bool:
        """A round is evaluated; whether what best.ckpt is the best of improved."""
        self.attributes.note()
        self.round = number
        self.stage = stage
        return self.scores.note(number, rows)


def has_custom_download(module: FederatedModule) -> bool:
    """Whether a method overrides `download`, so that clients are sent different states."""
    return is_overridden("download", module, FederatedModule)


def shared_names(module: FederatedModule, batch_norm: Literal["average", "local"]) -> list[str]:
    """The entries that are shared in every round; with `batch_norm: local`, without those of BatchNorm layers."""
    stay = set(constant_names(module))
    if batch_norm == "local":
        stay |= batch_norm_names(module)
    return [name for name in module.state_dict() if module.is_shared(name) and name not in stay]


def num_sharing(data: FederatedData) -> int:
    """Clients that may take part in what is averaged: those with a sample that is opted in, and none of the unseen."""
    return sum(1 for number in data.assignment.num_opted_in[: data.num_clients - data.unseen_clients] if number)
