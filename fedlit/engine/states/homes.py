"""What stays with clients on several processes: where it is at home, how it moves, and who is brought a copy."""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fedlit.aggregation import State
from fedlit.engine.cluster.processes import broadcast, exchanged
from fedlit.engine.cluster.shares import balanced
from fedlit.engine.plan import Memory

if TYPE_CHECKING:
    from fedlit.engine.states.state import FederationState


def share_out(state: "FederationState", clients: Sequence[int]) -> list[int]:
    """The process that visits each client of a round; what stays with one that is not visited at home moves."""
    owners = balanced(clients, state.homes, state.fabric.world_size)
    moves = {k: owner for k, owner in zip(clients, owners, strict=True) if state.homes.get(k, owner) != owner}
    if moves:
        _move(state, moves)
    return owners


def _move(state: "FederationState", targets: Mapping[int, int]) -> None:
    """Let other processes have what stays with these clients; all must ask."""
    rank = state.fabric.global_rank
    parcels: list[dict[int, Any]] = [{} for _ in range(state.fabric.world_size)]
    leaving = {k: target for k, target in targets.items() if state.homes[k] == rank}
    for k, target in leaving.items():
        parcels[target][k] = _parcel(state, k)
    state.memories.know({k: state.memories.names(k) for k in leaving})
    for came in exchanged(state.fabric, [parcel or None for parcel in parcels]):
        for k, parcel in (came or {}).items():
            _unpack(state, k, parcel)
    state.homes |= targets


def _parcel(state: "FederationState", k: int) -> dict[str, Any]:
    """What stays with a client, and what it has uploaded for the server to keep: of that its old home has a copy."""
    collected = state.collected.peek(k) if k in state.collected else {}
    return {"memory": vars(state.memories.peek(k)), "collected": collected}


def _unpack(state: "FederationState", k: int, parcel: Mapping[str, Any]) -> None:
    state.memories[k] = Memory(**parcel["memory"])
    if parcel["collected"]:
        state.collected.add(k, parcel["collected"])


def bring(state: "FederationState", clients: Iterable[int]) -> None:
    """Let every process have a copy of what stays with these clients, until it changes; all must ask."""
    rank = state.fabric.global_rank
    for k in clients:
        home = state.homes.get(k)
        if home is None:
            continue
        parcel = broadcast(state.fabric, _parcel(state, k) if home == rank else None, home)
        if home != rank:
            _unpack(state, k, parcel)


def settle(state: "FederationState", names: Mapping[int, tuple[str, ...]]) -> list[int]:
    """Give clients homes, from names of what stays with them; those whose home is here."""
    if state.fabric.world_size == 1:
        return [*names]
    homes = balanced([*names], {}, state.fabric.world_size)
    state.homes = dict(zip(names, homes, strict=True))
    elsewhere = {k: names[k] for k, home in state.homes.items() if home != state.fabric.global_rank}
    state.memories.know(elsewhere)
    return [k for k in names if k not in elsewhere]


def collected_for_server(state: "FederationState") -> Mapping[int, State]:
    """All that is collected, in the process where the server trains; the others must ask, too."""
    fabric = state.fabric
    collected = state.collected
    if fabric.world_size > 1 and not collected.is_with_server:
        rank = fabric.global_rank
        own = {k: collected[k] for k in collected.here() if rank > 0 and state.homes.get(k) == rank}
        parcels = [own or None] + [None] * (fabric.world_size - 1)
        for came in exchanged(fabric, parcels):
            for k, upload in (came or {}).items():
                collected.add(k, upload)
        collected.is_with_server = True
    return collected
