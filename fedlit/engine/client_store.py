"""Client states between rounds: in memory, on disk, and on the rank that owns them."""

import fcntl
import os
import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, MutableMapping, Sequence
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from fedlit.aggregation import State
from fedlit.engine.plan import ClientState
from fedlit.engine.processes import broadcast, exchanged, in_blocks
from fedlit.records.torch_file import dump

if TYPE_CHECKING:
    from fedlit.engine.state import FederationState

PREFIX = "fedlit-clients-"
LOCK = ".lock"


class SpillStore:
    """Client states by number, in host memory; above the budget, the least recently used are written to disk.

    Args:
        budget: Bytes of tensors to hold; the state in use is held whatever its size.
        device: Where states are returned, as copies; optimiser states stay in host memory (see `revived`).
    """

    def __init__(self, budget: float, device: torch.device | None = None) -> None:
        self.budget, self.device = budget, device or torch.device("cpu")
        self.num_bytes = 0
        self._pins = self.device.type == "cuda"
        self._held: OrderedDict[int, ClientState] = OrderedDict()
        self._sizes: dict[int, int] = {}
        self._numbers = count()
        self._folder: Path | None = None

    def put(self, memory: ClientState) -> int:
        """Store a client state; its number."""
        number = next(self._numbers)
        self._sizes[number] = _size(vars(memory))
        self._hold(number, self._on_host(memory))
        return number

    def get(self, number: int) -> ClientState:
        """The state of that number, from disk if it was written there."""
        if number not in self._held:
            self._hold(number, self._on_host(self._read(number)))
        self._held.move_to_end(number)
        held = self._held[number]
        if self.device.type == "cpu":
            return held
        return ClientState(self._on_device(held.state), held.optimizer, self._on_device(held.residual))

    def peek(self, number: int) -> ClientState:
        """The same in host memory, to be read once: what is on disk is mapped, not held."""
        return self._held[number] if number in self._held else self._read(number, mmap=True)

    def _read(self, number: int, mmap: bool = False) -> ClientState:
        return ClientState(**torch.load(self._file(number), weights_only=True, map_location="cpu", mmap=mmap))

    def _on_device(self, state: State) -> State:
        return {name: tensor.to(self.device, non_blocking=True) for name, tensor in state.items()}

    def _on_host(self, memory: ClientState) -> ClientState:
        """A copy in host memory, pinned for CUDA, from where copies to the device are fastest; on a CPU as it is."""
        if self.device.type == "cpu":
            return memory
        copied = ClientState(**apply_to_collection(dict(vars(memory)), Tensor, self._host_copy))
        if self.device.type == "cuda":
            torch.cuda.current_stream(self.device).synchronize()  # once for all copies of a state
        return copied

    def _host_copy(self, tensor: Tensor) -> Tensor:
        tensor = tensor.detach()
        if self._pins:
            try:
                return torch.empty_like(tensor, device="cpu", pin_memory=True).copy_(tensor, non_blocking=True)
            except RuntimeError:  # the system limits what may be pinned
                self._pins = False
        return tensor.cpu()

    def size(self, number: int) -> int:
        """Bytes of the tensors of a state."""
        return self._sizes[number]

    def drop(self, number: int) -> None:
        """Delete a state."""
        size = self._sizes.pop(number)
        if self._held.pop(number, None) is not None:
            self.num_bytes -= size
        if self._folder is not None:
            self._file(number).unlink(missing_ok=True)

    def _hold(self, number: int, memory: ClientState) -> None:
        self._held[number] = memory
        self.num_bytes += self._sizes[number]
        while self.num_bytes > self.budget and len(self._held) > 1:
            oldest, memory = self._held.popitem(last=False)
            self.num_bytes -= self._sizes[oldest]
            if not self._file(oldest).exists():  # a state never changes once it is stored
                dump(dict(vars(memory)), self._file(oldest), sealed=False)

    def _file(self, number: int) -> Path:
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix=PREFIX))
            weakref.finalize(self, _remove, self._folder, _locked(self._folder))
        return self._folder / f"{number}.pt"


class ClientStore(MutableMapping[int, ClientState]):
    """Client states by client id; of those on other ranks or hosts, the names of their entries."""

    def __init__(self, store: SpillStore) -> None:
        self.store = store
        self._numbers: dict[int, int] = {}
        self._names: dict[int, tuple[str, ...]] = {}

    def __getitem__(self, client: int) -> ClientState:
        return self.store.get(self._numbers[client])

    def __setitem__(self, client: int, memory: ClientState) -> None:
        self._set(client, self.store.put(memory), tuple(memory.state))

    def __delitem__(self, client: int) -> None:
        self.store.drop(self._numbers.pop(client))
        self._names.pop(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def peek(self, client: int) -> ClientState:
        """A client's state, to be read once."""
        return self.store.peek(self._numbers[client])

    def number(self, client: int) -> int:
        """The number of a client's state in the store; it changes with the state."""
        return self._numbers[client]

    @property
    def num_bytes(self) -> int:
        """Bytes of all states here, in memory or on disk."""
        return sum(self.store.size(number) for number in self._numbers.values())

    @property
    def everybody(self) -> Collection[int]:
        """Clients whose state is here, or known to be elsewhere."""
        return self._names.keys()

    def names(self, client: int) -> tuple[str, ...]:
        """The names in a client's state, without reading it; none if it has nothing."""
        return self._names.get(client, ())

    def know(self, names: Mapping[int, tuple[str, ...]]) -> None:
        """Note the names of states that are elsewhere; what is here of them is deleted."""
        for client in self._numbers.keys() & names.keys():
            self.store.drop(self._numbers.pop(client))
        self._names.update(names)

    def forget(self, client: int) -> None:
        """Delete a client's state and its names, if there are any."""
        self.know({client: ()})
        del self._names[client]

    def adopt(self, others: "ClientStore") -> None:
        """Take over what another mapping of the same store holds or knows, without reading it."""
        for client, number in others._numbers.items():
            self._set(client, number, others._names[client])
        self.know({client: names for client, names in others._names.items() if client not in others._numbers})

    def _set(self, client: int, number: int, names: tuple[str, ...]) -> None:
        if client in self._numbers:
            self.store.drop(self._numbers[client])
        self._numbers[client], self._names[client] = number, names


class StateStore(MutableMapping[int, State]):
    """A tensor state of each client, by client id."""

    def __init__(self, store: SpillStore) -> None:
        self.memories = ClientStore(store)

    def __getitem__(self, client: int) -> State:
        return self.memories[client].state

    def __setitem__(self, client: int, state: State) -> None:
        self.memories[client] = ClientState(state)

    def __delitem__(self, client: int) -> None:
        self.memories.forget(client)

    def __iter__(self) -> Iterator[int]:
        return iter(self.memories)

    def __len__(self) -> int:
        return len(self.memories)

    def clear(self) -> None:
        """Delete all, without reading it."""
        for client in list(self):
            self.memories.forget(client)

    def adopt(self, others: "StateStore") -> None:
        """Take over what another mapping of the same store holds or knows."""
        self.memories.adopt(others.memories)


class CollectedUploads(StateStore):
    """Uploads that the server keeps, by client id; of those on other ranks, the names are known.

    Attributes:
        is_with_server: Whether the rank on which the server trains has a copy of all.
    """

    is_with_server = False

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self.memories.everybody))

    def __len__(self) -> int:
        return len(self.memories.everybody)

    def __contains__(self, client: object) -> bool:
        return client in self.memories.everybody

    def here(self) -> list[int]:
        """Clients whose uploads this rank has, be it as a copy."""
        return sorted(self.memories)

    def names(self, client: int) -> tuple[str, ...]:
        """The names in an upload, wherever it is; none if there is none."""
        return self.memories.names(client)

    def number(self, client: int) -> int:
        """The number of an upload in the store; it changes with the upload."""
        return self.memories.number(client)

    def peek(self, client: int) -> State:
        """An upload, to be read once."""
        return self.memories.peek(client).state

    @property
    def num_bytes(self) -> int:
        """Bytes of all uploads here."""
        return self.memories.num_bytes

    def add(self, client: int, state: State) -> None:
        """Keep an upload."""
        self[client] = state

    def know(self, names: Mapping[int, tuple[str, ...]]) -> None:
        """Note the names of uploads that are elsewhere."""
        self.memories.know(names)

    def adopt(self, others: StateStore) -> None:
        super().adopt(others)
        self.is_with_server = self.is_with_server and not len(others)


def _locked(folder: Path) -> TextIO:
    """A lock that lasts as long as this process; it is held before others can see it."""
    lock = (folder / f"{LOCK}.new").open("w")
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(lock.name, folder / LOCK)
    return lock


def _remove(folder: Path, lock: TextIO) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    lock.close()


def sweep_left_behind() -> None:
    """Remove this user's folders of processes that were killed: nobody holds their locks."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            if folder.lstat().st_uid != os.getuid():
                continue
            with (folder / LOCK).open() as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:  # in use, or gone in the meantime
            continue


def _size(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    return sum(map(_size, value.values())) if isinstance(value, dict) else 0


def assign_ranks(state: "FederationState", clients: Sequence[int]) -> list[int]:
    """The rank that trains each client of a round; the states of clients that another rank owns are moved there."""
    owners = in_blocks(len(clients), state.fabric.world_size)
    moves = {k: owner for k, owner in zip(clients, owners, strict=True) if state.owner_ranks.get(k, owner) != owner}
    if moves:
        _move(state, moves)
    return owners


def _move(state: "FederationState", targets: Mapping[int, int]) -> None:
    """Make other ranks the owners of these clients; collective."""
    rank = state.fabric.global_rank
    parcels: list[dict[int, Any]] = [{} for _ in range(state.fabric.world_size)]
    leaving = {k: target for k, target in targets.items() if state.owner_ranks[k] == rank}
    for k, target in leaving.items():
        parcels[target][k] = _parcel(state, k)
    state.memories.know({k: state.memories.names(k) for k in leaving})
    for received in exchanged(state.fabric, [parcel or None for parcel in parcels]):
        for k, parcel in (received or {}).items():
            _unpack(state, k, parcel)
    state.owner_ranks |= targets


def _parcel(state: "FederationState", k: int) -> dict[str, Any]:
    """A client's state, and its collected upload, of which the old owner keeps a copy."""
    collected = state.collected.peek(k) if k in state.collected else {}
    return {"memory": vars(state.memories.peek(k)), "collected": collected}


def _unpack(state: "FederationState", k: int, parcel: Mapping[str, Any]) -> None:
    state.memories[k] = ClientState(**parcel["memory"])
    if parcel["collected"]:
        state.collected.add(k, parcel["collected"])


def copy_to_all_ranks(state: "FederationState", clients: Iterable[int]) -> None:
    """Give every rank a copy of these clients' states, until they change; collective."""
    rank = state.fabric.global_rank
    for k in clients:
        owner = state.owner_ranks.get(k)
        if owner is None:
            continue
        parcel = broadcast(state.fabric, _parcel(state, k) if owner == rank else None, owner)
        if owner != rank:
            _unpack(state, k, parcel)


def assign_owners(state: "FederationState", names: Mapping[int, tuple[str, ...]]) -> list[int]:
    """Give clients owner ranks, from the names of their states; those whose owner is this rank."""
    if state.fabric.world_size == 1:
        return [*names]
    owner_ranks = in_blocks(len(names), state.fabric.world_size)
    state.owner_ranks = dict(zip(names, owner_ranks, strict=True))
    elsewhere = {k: names[k] for k, owner in state.owner_ranks.items() if owner != state.fabric.global_rank}
    state.memories.know(elsewhere)
    return [k for k in names if k not in elsewhere]


def gather_collected(state: "FederationState") -> Mapping[int, State]:
    """All collected uploads, on the rank where the server trains; collective."""
    fabric = state.fabric
    collected = state.collected
    if fabric.world_size > 1 and not collected.is_with_server:
        rank = fabric.global_rank
        own = {k: collected[k] for k in collected.here() if rank > 0 and state.owner_ranks.get(k) == rank}
        parcels = [own or None] + [None] * (fabric.world_size - 1)
        for received in exchanged(fabric, parcels):
            for k, upload in (received or {}).items():
                collected.add(k, upload)
        collected.is_with_server = True
    return collected
