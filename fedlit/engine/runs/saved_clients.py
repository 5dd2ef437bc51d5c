"""What stays with clients, as a fit saves it: in the checkpoint, or beside it where that is much or on others."""

from pathlib import Path
from typing import Any

from fedlit.engine.cluster.processes import broadcast
from fedlit.engine.states.state import FederationState
from fedlit.records import client_files

RESIDUALS = "residuals"  # what the encoder of uploads has lost, by client; only where it has
COLLECTED = "collected"  # uploads that the server keeps, by client
MUCH = 64e6  # bytes of what stays with clients; with less, to write it all is soon done, and a checkpoint is one file
Numbers = tuple[int | None, int | None]  # of what stays with a client, and of what it has uploaded to be kept


class SavedClients:
    """Files of clients beside the checkpoints of one fit, each written once.

    Args:
        state: Of the federation.
        checkpoints: Their folder.
        origin: The checkpoint that the fit goes on from.
        content: What it holds.
    """

    def __init__(self, state: FederationState, checkpoints: Path, origin: Path | None, content: dict[str, Any]) -> None:
        self.state = state
        self.checkpoints = checkpoints
        self._written: dict[int, tuple[Numbers, str]] = {}  # by client: what it has, and the file of that
        names = content.get(client_files.FILES, {})
        is_ours = origin is not None and origin.resolve().parent == checkpoints.resolve()
        if is_ours and state.options.optimizer_state != "reset":  # else they have forgotten something since
            self._written = {k: (self._numbers(k), names[k]) for k in self._clients() if k in names}

    def save(self) -> dict[int, str] | None:
        """The file of every client that has something; None if it is to stand in the checkpoint. All must ask."""
        state = self.state
        fabric = state.fabric
        if fabric.world_size == 1 and state.memories.num_bytes + state.collected.num_bytes < MUCH:
            return None
        own: dict[int, str] = {}
        for k in self._clients():
            if state.homes.get(k, fabric.global_rank) == fabric.global_rank:
                own[k] = self._file(k)
        found: dict[int, str] = {}
        for source in range(fabric.world_size):
            found |= broadcast(fabric, own, source)
        return {k: found[k] for k in sorted(found)}

    def _clients(self) -> list[int]:
        """Of whom there is something here."""
        return sorted({*self.state.memories, *self.state.collected.here()})

    def _numbers(self, k: int) -> Numbers:
        """What a client has; who has something else has other numbers."""
        memories = self.state.memories
        collected = self.state.collected
        memory = memories.number(k) if k in memories else None
        upload = collected.number(k) if k in collected.here() else None
        return memory, upload

    def _file(self, k: int) -> str:
        numbers = self._numbers(k)
        if k not in self._written or self._written[k][0] != numbers:
            kept = kept_of(self.state, k)
            self._written[k] = (numbers, client_files.write(kept, self.checkpoints, self.state.fabric.global_rank))
        return self._written[k][1]


def kept_of(state: FederationState, k: int) -> dict[str, Any]:
    """What stays with a client, by the names under which a checkpoint has it of all clients."""
    kept: dict[str, Any] = {}
    if k in state.memories:
        memory = state.memories.peek(k)
        kept = {"personal_states": on_cpu(memory.state), "optimizer_states": on_cpu(memory.optimizer)}
        if memory.residual:
            kept[RESIDUALS] = on_cpu(memory.residual)
    if k in state.collected:
        kept[COLLECTED] = on_cpu(state.collected.peek(k))
    return kept


def on_cpu(value: Any) -> Any:
    """Tensors in containers, where a checkpoint has them."""
    if hasattr(value, "detach"):
        return value.detach().cpu()
    if isinstance(value, list):
        return [on_cpu(entry) for entry in value]
    return {key: on_cpu(entry) for key, entry in value.items()} if isinstance(value, dict) else value
