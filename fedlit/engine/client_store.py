"""What stays with clients between rounds: in memory, on disk, and on the rank that owns it."""

import tempfile
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from fedlit.aggregation import State, num_bytes
from fedlit.engine.plan import ClientState
from fedlit.engine.processes import all_to_all, broadcast, in_blocks
from fedlit.records.plain_values import to_bytes

if TYPE_CHECKING:
    from fedlit.engine.state import FederationState


class SpillStore:
    """Keeps client states in host memory, and in mapped files where they would exceed a budget in bytes.

    They are used on `device`; optimiser states stay in host memory (see `restored_entry`).
    """

    def __init__(self, budget: float, device: torch.device) -> None:
        self.left = budget
        self.device = device

    def put(self, client_state: ClientState) -> ClientState:
        """The same state where it is kept; its place is free again when nobody refers to it any more.

        A mapped file has no name: the system reads what is used, may forget it again, and deletes it with the tensors,
        or with a process that is killed.
        """
        size = num_bytes(vars(client_state))
        if size > self.left:
            with tempfile.TemporaryFile(buffering=0) as file:
                path = f"/dev/fd/{file.fileno()}"
                Path(path).write_bytes(to_bytes(vars(client_state)))
                return ClientState(**torch.load(path, weights_only=True, map_location="cpu", mmap=True))
        kept = self._on_host(client_state)
        self.left -= size
        weakref.finalize(kept, self._free, size)
        return kept

    def get(self, kept: ClientState) -> ClientState:
        """A state that was put, on the device."""
        if self.device.type == "cpu":
            return kept

        def moved(state: State) -> State:
            return {name: tensor.to(self.device, non_blocking=True) for name, tensor in state.items()}

        return ClientState(moved(kept.state), kept.optimizer, moved(kept.residual))

    def _free(self, size: int) -> None:
        self.left += size

    def _on_host(self, client_state: ClientState) -> ClientState:
        """In host memory, pinned for CUDA, from where copies to the device are fastest; on a CPU as it is."""
        if self.device.type == "cpu":
            return ClientState(**vars(client_state))
        is_cuda = self.device.type == "cuda"

        def copied(tensor: Tensor) -> Tensor:
            host = torch.empty_like(tensor, device="cpu", pin_memory=is_cuda, requires_grad=False)
            return host.copy_(tensor.detach(), non_blocking=is_cuda)

        kept = ClientState(**apply_to_collection(dict(vars(client_state)), Tensor, copied))
        if is_cuda:
            torch.cuda.current_stream(self.device).synchronize()  # once for all copies of a state
        return kept


Value = TypeVar("Value", ClientState, State)


class StoreByClient(Mapping[int, Value]):
    """What is kept of clients, by client id; of what other ranks or hosts have, only the names of its entries.

    Iteration, `in` and `len` are of all clients. Only those that are `here` can be read.
    """

    def __init__(self, store: SpillStore) -> None:
        self.store = store
        self._kept: dict[int, ClientState] = {}
        self._elsewhere: dict[int, tuple[str, ...]] = {}

    def __iter__(self) -> Iterator[int]:
        return iter(sorted({*self._kept, *self._elsewhere}))

    def __len__(self) -> int:
        return len(self._kept) + len(self._elsewhere)

    def __contains__(self, client: object) -> bool:
        return client in self._kept or client in self._elsewhere

    @property
    def here(self) -> Collection[int]:
        """Clients of which something is kept here, be it as a copy."""
        return self._kept.keys()

    def on_host(self, client: int) -> ClientState:
        """What is kept here, in host memory; an upload is its state."""
        return self._kept[client]

    @property
    def num_bytes(self) -> int:
        """Of what is here, in memory or on disk."""
        return sum(num_bytes(vars(kept)) for kept in self._kept.values())

    def names(self, client: int) -> tuple[str, ...]:
        """Of the entries, without reading them; none if nothing is kept."""
        return tuple(self._kept[client].state) if client in self._kept else self._elsewhere.get(client, ())

    def record_remote(self, names: Mapping[int, tuple[str, ...]]) -> None:
        """Note what is elsewhere; what is here of the same clients is deleted."""
        for client in names:
            self.forget(client)
        self._elsewhere.update(names)

    def merge(self, others: "StoreByClient[Value]") -> None:
        """Take over all that another one holds or knows."""
        for client in others:
            self.forget(client)
        self._kept.update(others._kept)
        self._elsewhere.update(others._elsewhere)

    def forget(self, client: int) -> None:
        """Delete what is kept of a client, if there is anything."""
        self._kept.pop(client, None)
        self._elsewhere.pop(client, None)

    def clear(self) -> None:
        """Delete all."""
        self._kept.clear()
        self._elsewhere.clear()

    def _put(self, client: int, client_state: ClientState) -> None:
        self.forget(client)
        self._kept[client] = self.store.put(client_state)


class ClientStore(StoreByClient[ClientState]):
    """The state of each client."""

    def __getitem__(self, client: int) -> ClientState:
        return self.store.get(self._kept[client])

    def __setitem__(self, client: int, client_state: ClientState) -> None:
        self._put(client, client_state)


class UploadStore(StoreByClient[State]):
    """An upload of each client, which the server keeps."""

    def __getitem__(self, client: int) -> State:
        return self.store.get(self._kept[client]).state

    def __setitem__(self, client: int, state: State) -> None:
        self._put(client, ClientState(state))


def assign_ranks(state: "FederationState", clients: Sequence[int]) -> list[int]:
    """The rank that trains each client of a round; it becomes the owner of the client's state. Collective."""
    fabric = state.fabric
    ranks = in_blocks(len(clients), fabric.world_size)
    targets = {k: rank for k, rank in zip(clients, ranks, strict=True) if state.owner_ranks.get(k, rank) != rank}
    parcels: list[dict[int, Any]] = [{} for _ in range(fabric.world_size)]
    for k, target in targets.items():
        if state.owner_ranks[k] == fabric.global_rank:
            parcels[target][k] = _packed_client(state, k)
            state.client_states.record_remote({k: state.client_states.names(k)})
    if targets:
        for received in all_to_all(fabric, parcels):
            for k, parcel in received.items():
                _store_packed(state, k, parcel)
    state.owner_ranks |= targets
    return ranks


def _packed_client(state: "FederationState", k: int) -> dict[str, Any]:
    """A client's state, and its collected upload, of which the old owner keeps a copy."""
    collected = state.collected.on_host(k).state if k in state.collected else {}
    return {"memory": vars(state.client_states.on_host(k)), "collected": collected}


def _store_packed(state: "FederationState", k: int, parcel: Mapping[str, Any]) -> None:
    state.client_states[k] = ClientState(**parcel["memory"])
    if parcel["collected"]:
        state.collected[k] = parcel["collected"]


def copy_to_all_ranks(state: "FederationState", clients: Iterable[int]) -> None:
    """Give every rank a copy of these clients' states, until they change; collective."""
    rank = state.fabric.global_rank
    for k in clients:
        owner = state.owner_ranks.get(k)
        if owner is None:
            continue
        parcel = broadcast(state.fabric, _packed_client(state, k) if owner == rank else None, owner)
        if owner != rank:
            _store_packed(state, k, parcel)


def gather_collected(state: "FederationState") -> Mapping[int, State]:
    """All collected uploads, on the rank where the server trains; collective."""
    fabric = state.fabric
    collected = state.collected
    missing = broadcast(fabric, [k for k in collected if k not in collected.here])  # on the first
    if missing:
        parcels: list[dict[int, State]] = [{} for _ in range(fabric.world_size)]
        parcels[0] = {k: collected[k] for k in missing if state.owner_ranks.get(k) == fabric.global_rank}
        for received in all_to_all(fabric, parcels):
            for k, upload in received.items():
                collected[k] = upload
    return collected
