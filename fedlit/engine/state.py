"""What a federation is: the states of server and clients, how far it has come, and the live module of this process.

Others ask; what changes, changes here: at the end of a round of clients (`end_client_round`), of one of the server
(`end_server_round`), and when a checkpoint is resumed.
"""

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Literal

import torch
from lightning.fabric import Fabric
from torch import nn

from fedlit.aggregation import State
from fedlit.data import FederatedData
from fedlit.engine.client_store import Memories, Store
from fedlit.engine.guard import Guard
from fedlit.engine.live import LiveModule
from fedlit.engine.options import Options
from fedlit.engine.plan import Memory
from fedlit.engine.processes import broadcast
from fedlit.engine.scoreboard import Scoreboard
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.rows import Row

GIGABYTE = 1e9
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


class FederationState:
    """The states of a federation.

    Args:
        fabric: Launched; knows device, precision and processes.
        module: The method; it becomes the one live module of this process.
        data: Set up.
        options: Of the federation.
        layout: How kernels of images are held in fast mode.

    Attributes:
        initial: What every client begins with, below what it has from server and itself.
        guard: Around clients' code.
        shared: Names of what travels.
        global_state: What the server holds: the shared state, and what it keeps for itself.
        collected: Uploads that the server keeps as they came, by client.
        memories: What stays with each client.
        server_memory: Of the server's own optimiser.
        round: Rounds done so far.
        stage: Of the last round; None before the first.
        scores: The last and the best of every metric.
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
        self.guard = Guard(self.live)
        self.initial: State = {name: tensor.clone() for name, tensor in module.state_dict().items()}
        self.shared = shared_names(module, options.batch_norm)
        self.server_names = [*self.shared, *(name for name in self.initial if name.startswith(module.server_only))]
        self.global_state: State = {name: self.initial[name].clone() for name in self.server_names}
        self.collected: dict[int, State] = module.earlier_uploads()
        self.memories = Memories(Store(options.personal_memory * GIGABYTE, fabric.device))
        self.server_memory = Memory()
        self.round = 0
        self.stage: Stage | None = None
        self._partition_hash: str | None = None  # computed once: it takes a moment
        self.scores = Scoreboard(options.metrics, options.monitor or module.monitor)

    @property
    def module(self) -> FederatedModule:
        """The live module of this process."""
        return self.live.module

    @property
    def shared_state(self) -> State:
        """What travels of what the server holds."""
        return {name: self.global_state[name] for name in self.shared}

    def synchronise(self) -> None:
        """Every process starts from the first one's states."""
        self.initial = broadcast(self.fabric, self.initial)
        self.global_state = {name: self.initial[name].clone() for name in self.server_names}
        self.live.put(self.initial)

    def use(self, data: FederatedData) -> None:
        """Go on with other data: to evaluate on them."""
        if self.round and data.num_clients != self.data.num_clients:
            raise ValueError(
                f"`data.num_clients` is {data.num_clients}, but the federation has been fitted with "
                f"{self.data.num_clients}; make another Federation for other clients."
            )
        if data is not self.data:
            self.data = data
            self._partition_hash = None

    @property
    def partition_hash(self) -> str:
        """Of the labels, about a hundred inputs, and who holds what: a checkpoint goes on with the same."""
        if self._partition_hash is None:
            self._partition_hash = partition_hash(self.data)
        return self._partition_hash

    def personal(self, k: int) -> State:
        """What a client has of its own: what it uploaded for the server to keep, and what it keeps."""
        kept = self.memories[k].state if k in self.memories else {}
        return {**self.collected.get(k, {}), **kept}

    def has_trained(self, k: int, prefix: str) -> bool:
        """Whether a client has state of its own with this prefix; everybody has nothing in particular."""
        if not prefix:
            return True
        names = (*self.collected.get(k, ()), *self.memories.names(k))
        return any(name.startswith(prefix) for name in names)

    def enter(self, k: int, prefer: Literal["server", "personal"], round: int = 0) -> None:
        """Put a client's state into the live module; `prefer` says whose values win where both have some."""
        client = self.data.client(k, round)
        self.live.enter(client, self.initial, self.global_state, self.personal(k), prefer)

    def load_global(self) -> None:
        """Put the server's state into the live module."""
        self.live.reset_modes()
        self.live.put(self.global_state)

    def end_client_round(self, agreed: State, memories: Memories, collected: Mapping[int, State]) -> None:
        """The clients of a round are done; a round that is cut short before this has left no trace."""
        self.global_state = agreed
        self.memories.adopt(memories)
        self.collected |= collected

    def end_server_round(self, state: State, memory: Memory) -> None:
        """The server has trained what it holds."""
        self.global_state = state
        self.server_memory = memory

    def count_round(self, number: int, stage: Stage, rows: list[Row]) -> bool:
        """A round is evaluated; whether what best.ckpt is the best of improved."""
        self.round = number
        self.stage = stage
        return self.scores.note(number, rows)

    def resume(self, round: int, stage: Stage | None, global_state: State, initial: State) -> None:
        """Go on from these; `initial` holds what the server does not."""
        self.round = round
        self.stage = stage
        self.global_state = global_state
        self.initial = {**self.initial, **initial}

    def resume_clients(
        self, memories: Iterable[tuple[int, Memory]], collected: dict[int, State], server_memory: Memory
    ) -> None:
        """Go on with what stayed with clients, one after the other, and what the server keeps of them."""
        for k, memory in memories:
            self.memories[k] = memory
        self.collected = collected
        self.server_memory = server_memory


def shared_names(module: FederatedModule, batch_norm: Literal["average", "local"]) -> list[str]:
    """The entries of the state that travel; with `batch_norm: local`, BatchNorm layers stay at home."""
    stay: set[str] = set()
    if batch_norm == "local":
        for prefix, part in module.named_modules():
            if isinstance(part, BATCH_NORMS):
                stay |= {f"{prefix}.{name}" for name in part.state_dict()}
    return [name for name in module.state_dict() if module.is_shared(name) and name not in stay]


def partition_hash(data: FederatedData) -> str:
    """Of the targets, about a hundred inputs (of samples that are read, a few), and who holds what."""
    digest = sha256()
    for content in data.splits.train.fingerprint():
        digest.update(content)
    assignment = data.assignment
    for part in (*assignment.train, *assignment.val, *assignment.opted_in, *assignment.own_test):
        digest.update(part.tobytes())
    return digest.hexdigest()
