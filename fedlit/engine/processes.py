"""What processes of a run exchange (tensors, numbers, strings and containers of them), and who trains which client."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from lightning.fabric import Fabric

from fedlit.engine import liveness
from fedlit.records.plain_values import from_bytes, to_bytes


def all_gather(fabric: Fabric, own: Mapping[int, Any]) -> dict[int, Any]:
    """All-gather: the results of all ranks, by task; values as in `broadcast`."""
    found: dict[int, Any] = {}
    for rank in range(fabric.world_size):
        found |= broadcast(fabric, dict(own), rank)
    return found


def broadcast(fabric: Fabric, value: Any, source: int = 0, device: torch.device | None = None) -> Any:
    """The source's value on every process, by default on Fabric's device; nothing is unpickled."""
    if fabric.world_size == 1:
        return value
    wire = _wire(fabric.device)
    payload = to_bytes(value) if fabric.global_rank == source else b""
    size = torch.tensor([len(payload)], device=wire)
    _finish(dist.broadcast(size, source, async_op=True))
    data = torch.frombuffer(bytearray(payload or int(size)), dtype=torch.uint8).to(wire)
    _finish(dist.broadcast(data, source, async_op=True))
    return from_bytes(data.cpu().numpy().tobytes(), device or fabric.device)


def all_to_all(fabric: Fabric, parcels: Sequence[Any]) -> list[Any]:
    """All-to-all: what every rank sends to this one, by rank; values as in `broadcast`."""
    device = _wire(fabric.device)
    payloads = [to_bytes(parcel) for parcel in parcels]
    sent = [len(payload) for payload in payloads]
    sizes = torch.empty(fabric.world_size, dtype=torch.int64, device=device)
    _finish(dist.all_to_all_single(sizes, torch.tensor(sent, device=device), async_op=True))
    received = sizes.tolist()
    came = torch.empty(sum(received), dtype=torch.uint8, device=device)
    given = torch.frombuffer(bytearray(b"".join(payloads)), dtype=torch.uint8).to(device)
    _finish(dist.all_to_all_single(came, given, received, sent, async_op=True))
    return [from_bytes(part.numpy().tobytes(), fabric.device) for part in came.cpu().split(received)]


def all_reduce_max(fabric: Fabric, *numbers: int) -> list[int]:
    """All-reduce by maximum of each number."""
    if fabric.world_size == 1:
        return [*numbers]
    found = torch.tensor(numbers, device=_wire(fabric.device))
    _finish(dist.all_reduce(found, dist.ReduceOp.MAX, async_op=True))
    return found.tolist()


def barrier(fabric: Fabric) -> None:
    """Barrier."""
    all_reduce_max(fabric, 0)


def _finish(work: dist.Work) -> None:
    """Wait for the others; where fedlit has not started the processes itself, as torch.distributed does."""
    alive = liveness.current()
    if alive is None:
        work.wait()
    else:
        alive.finish(work)


def _wire(device: torch.device) -> torch.device:
    """The device from which tensors are sent."""
    return torch.device("cpu") if dist.get_backend() == "gloo" else device


def in_blocks(num_clients: int, num_processes: int) -> list[int]:
    """The rank of each client of a round: consecutive clients together, and no rank more than one client ahead.

    Sampled clients are sorted, so most of them come to the rank that has their state from the round before, and a sum
    in client order passes from rank to rank only once.

    Example:
        >>> in_blocks(5, num_processes=2)
        [0, 0, 0, 1, 1]
    """
    return [position * num_processes // num_clients for position in range(num_clients)]


def by_owner(clients: Sequence[int | None], owners: Mapping[int, int], num_processes: int) -> list[int]:
    """The rank of each task: the owner of its client's state, however many there are; else the rank with the fewest."""
    ranks = [None if k is None else owners.get(k) for k in clients]
    loads = [ranks.count(rank) for rank in range(num_processes)]
    found: list[int] = []
    for rank in ranks:
        if rank is None:
            rank = loads.index(min(loads))
            loads[rank] += 1
        found.append(rank)
    return found
