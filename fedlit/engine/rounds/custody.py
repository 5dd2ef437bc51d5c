"""What the clients of a round bring, and who has it until the round is over: this process, or the one that visited."""

from collections.abc import Iterable, Sequence

from fedlit.aggregation import Upload
from fedlit.data.client import SERVER
from fedlit.engine.plan import Memory
from fedlit.engine.rounds.held import HeldUploads, update_norm
from fedlit.engine.rounds.spread import SpreadUploads
from fedlit.engine.rounds.visited import Visited, without_values
from fedlit.engine.states.client_store import Memories
from fedlit.engine.states.collected import Collected
from fedlit.engine.states.state import FederationState
from fedlit.records.round_record import Failure


class Custody:
    """Of one round.

    Args:
        state: Of the federation; nothing of it changes.

    Attributes:
        memories: What stays with clients from this round on.
        homes: The processes that have it, if there are several.
        owners: The process that visits each client, if there are several.
        held: Uploads of this process that are asked for after all visits.
        norms: How far clients have moved, where somebody asks.
    """

    def __init__(self, state: FederationState) -> None:
        self.state = state
        self.memories = Memories(state.memories.store)
        self.homes: dict[int, int] = {}
        self.owners: dict[int, int] = {}
        self.held = HeldUploads(state.memories.store)
        self.norms: dict[int, float] = {}

    def share(self, clients: Sequence[int], owners: Sequence[int]) -> None:
        """Note which process trains each client, if there are several."""
        if self.state.fabric.world_size > 1:
            self.owners = dict(zip(clients, owners, strict=True))

    def left_here(self, k: int, visited: Visited) -> Visited:
        """What others may know of a visit: on several processes, what is large and sound stays with the visitor."""
        outcome = visited.outcome
        if not self.owners:
            return visited
        if isinstance(outcome, Failure) or visited.problem is not None:
            return without_values(visited)
        if outcome.upload is not None:
            self.held.add(outcome.upload)
            if self.state.options.max_norm_ratio is not None:
                visited = visited._replace(norm=self.norm(outcome.upload))
        if self._is_kept(k, outcome.memory):
            self.memories[k] = outcome.memory
        return without_values(visited)

    def hold(self, upload: Upload) -> None:
        """An upload until all have come, unless its visitor has done so."""
        if self.owners:
            return
        self.held.add(upload)
        if self.state.options.max_norm_ratio is not None:
            self.norms[upload.client] = self.norm(upload)

    def handed_over(self, client: int, weight: float) -> Upload:
        """An upload that was held; on several processes, no more than that there is one."""
        if self.owners:
            return Upload(client, {}, weight)
        upload = self.held[client]
        self.held.drop(client)
        return upload

    def keep(self, k: int, memory: Memory) -> None:
        """What stays with a client; what another process has is known by its names."""
        if not self._is_kept(k, memory):
            return
        if not self.owners:
            self.memories[k] = memory
            return
        self.homes[k] = self.owners[k]
        if self.owners[k] != self.state.fabric.global_rank:
            self.memories.know({k: tuple(memory.state)})

    def drop(self, k: int) -> None:
        """Forget what a client has brought."""
        self.held.drop(k)
        self.memories.forget(k)
        self.homes.pop(k, None)

    def collect(self, uploads: Iterable[Upload], found: Collected) -> None:
        """Let the server keep uploads as they come: on several processes, where their clients are at home from now on.

        Args:
            uploads: On several processes, of those that others have made the names.
            found: Takes them.
        """
        for upload in uploads:
            k = upload.client
            if not self.owners:
                found.add(k, upload.state)
                continue
            self.homes[k] = self.owners[k]
            if self.owners[k] != self.state.fabric.global_rank:
                found.know({k: tuple(upload.state)})
                self.memories.know({k: self.memories.names(k)})
                continue
            found.add(k, self.held[k].state)
            if k not in self.memories:  # it keeps nothing else
                self.memories[k] = Memory()

    def spread(self, uploads: Iterable[Upload], are_alike: bool) -> SpreadUploads:
        """All clients are visited; what they upload stays where it is until somebody asks for it."""
        weights = {upload.client: upload.weight for upload in uploads}
        holders = {k: self.owners[k] for k in weights}
        like = self.state.expected_upload(SERVER) if are_alike else None
        return SpreadUploads(self.state.fabric, self.held, holders, weights, like)

    def norm(self, upload: Upload) -> float:
        """How far a client has moved."""
        shared = {name: value for name, value in upload.state.items() if name in self.state.shared}
        return update_norm(shared, self.state.shared_state)

    def _is_kept(self, k: int, memory: Memory) -> bool:
        """Whether there is anything; a client that had something may have given all away."""
        is_something = bool(memory.state or memory.optimizer or memory.residual)
        return is_something or k in self.state.memories or k in self.state.homes
