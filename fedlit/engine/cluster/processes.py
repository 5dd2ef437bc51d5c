"""Clients on several processes: each visits its share of a round's clients, and all hear what came of every visit.

What is large stays where it was made; here is how it is added up (`added_up`, `largest_of`), asked for (`broadcast`)
and moved (`exchanged`).
"""

import io
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from torch import Tensor

from fedlit.engine.cluster import heartbeat
from fedlit.engine.cluster.rendezvous import ClientParallelStrategy, wire
from fedlit.engine.options import Options
from fedlit.engine.plan import Interrupted

Result = TypeVar("Result")
A_SECOND = timedelta(seconds=1)


class ProcessLost(Interrupted):
    """Another process of the run is gone, so no round can be ended any more.

    Attributes:
        is_ours_to_say: Whether this process is the one that tells the person.
    """

    def __init__(self, line: str, is_ours_to_say: bool) -> None:
        super().__init__(line)
        self.is_ours_to_say = is_ours_to_say


def make_fabric(options: Options) -> Fabric:
    """Fabric as the user's options have it; several processes share clients, not gradients."""
    several = options.num_nodes > 1 or str(options.devices) not in ("1", "auto")
    timeout = options.process_timeout
    talkative = options.enable_progress_bar
    wanted: dict[str, Any] = {"num_nodes": options.num_nodes, "precision": options.precision}
    try:
        if options.processes_per_device > 1:
            each = _devices(options.accelerator, options.devices)
            shared = [device for device in each for _ in range(options.processes_per_device)]
            return Fabric(strategy=ClientParallelStrategy(timeout, talkative, shared), **wanted)
        strategy = ClientParallelStrategy(timeout, talkative) if several else "auto"
        return Fabric(accelerator=options.accelerator, devices=options.devices, strategy=strategy, **wanted)
    except Exception as error:  # Fabric raises many kinds
        names = ("accelerator", "devices", "num_nodes")
        given = ", ".join(f"`trainer.{name}` {getattr(options, name)}" for name in names)
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{given} with `trainer.precision` {options.precision} cannot be had here: {why}") from error


def _devices(accelerator: str, devices: int | str) -> list[torch.device]:
    """Those that Fabric would take, a process each."""
    strategy = Fabric(accelerator=accelerator, devices=devices).strategy
    return [*(getattr(strategy, "parallel_devices", None) or [strategy.root_device])]


def in_order(
    fabric: Fabric,
    tasks: Sequence[int],
    work: Callable[[int], Result],
    pack: Callable,
    unpack: Callable,
    owners: Sequence[int] | None = None,
) -> Iterator[tuple[int, Result]]:
    """`work` on every task, spread over the processes, with every result on every process in the order of the tasks.

    On one process a task is worked on only when its result is asked for, so a consumer that keeps nothing needs the
    memory of one result; on several, all tasks are done before the first result comes. A process has its own results as
    they are; `pack` and `unpack` turn those of others into containers of tensors and back.

    Args:
        fabric: Launched.
        tasks: By number.
        work: On a task.
        pack: A result for others.
        unpack: And back.
        owners: The process of each task; in turn by default.
    """
    if fabric.world_size == 1:
        yield from ((task, work(task)) for task in tasks)
        return
    if owners is None:
        owners = [position % fabric.world_size for position in range(len(tasks))]
    shares: list[list[int]] = [[] for _ in range(fabric.world_size)]
    for task, owner in zip(tasks, owners, strict=True):
        shares[owner].append(task)
    own = {task: work(task) for task in shares[fabric.global_rank]}
    packed: dict[int, Any] = {}
    for source, share in enumerate(shares):
        if share:
            packed |= broadcast(fabric, {task: pack(own[task]) for task in share if task in own}, source)
    for task in tasks:
        told = packed.pop(task)
        yield task, own.pop(task) if task in own else unpack(told)


def broadcast(fabric: Fabric, value: Any, source: int = 0) -> Any:
    """The source's value on every process. Tensors, numbers, strings and containers of them; nothing is unpickled."""
    if fabric.world_size == 1:
        return value
    payload = torch.empty(0, dtype=torch.uint8)
    if fabric.global_rank == source:
        payload = torch.frombuffer(bytearray(_serialised(value)), dtype=torch.uint8)
    size = torch.tensor([len(payload)], device=wire(fabric.device))
    _finish(dist.broadcast(size, source, async_op=True))
    data = _sized(payload, int(size), size.device)
    _finish(dist.broadcast(data, source, async_op=True))
    return _revived(data.cpu(), fabric.device)


def _serialised(value: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def _revived(data: Tensor, device: torch.device) -> Any:
    return torch.load(io.BytesIO(data.numpy().tobytes()), weights_only=True, map_location=device)


def exchanged(fabric: Fabric, parcels: Sequence[Any]) -> list[Any]:
    """What every process has for this one, by its rank; values as in `broadcast`.

    Args:
        fabric: Launched.
        parcels: What this one has for each, by rank; None is nothing.
    """
    if fabric.world_size == 1:
        return [*parcels]
    payloads = [_serialised(parcel) if parcel is not None else b"" for parcel in parcels]
    device = wire(fabric.device)
    sent = [len(payload) for payload in payloads]
    sizes = torch.empty(fabric.world_size, dtype=torch.int64, device=device)
    _finish(dist.all_to_all_single(sizes, torch.tensor(sent, device=device), async_op=True))
    received = sizes.tolist()
    came = torch.empty(sum(received), dtype=torch.uint8, device=device)
    given = torch.frombuffer(bytearray(b"".join(payloads)) or bytearray(1), dtype=torch.uint8)[: sum(sent)]
    _finish(dist.all_to_all_single(came, given.to(device), received, sent, async_op=True))
    parts = came.cpu().split(received)
    return [_revived(part, fabric.device) if len(part) else None for part in parts]


def added_up(fabric: Fabric, own: Tensor) -> Tensor:
    """The sum over processes, in an order that is torch's."""
    return _reduced(fabric, own, dist.ReduceOp.SUM)


def largest_of(fabric: Fabric, own: Tensor) -> Tensor:
    """Of each entry, the largest that any process gives."""
    return _reduced(fabric, own, dist.ReduceOp.MAX)


def largest(fabric: Fabric, *numbers: int) -> list[int]:
    """Of each number, the largest that any process gives."""
    return largest_of(fabric, torch.tensor(numbers)).tolist()


def _reduced(fabric: Fabric, own: Tensor, how: Any) -> Tensor:
    if fabric.world_size == 1 or not own.numel():
        return own
    seen = own.to(wire(fabric.device), copy=True)
    _finish(dist.all_reduce(seen, how, async_op=True))
    return seen.to(own.device)


def meet(fabric: Fabric) -> None:
    """Wait until every process has come here."""
    largest(fabric, 0)


def check_processes() -> None:
    """Refuse to go on if another process is gone."""
    heart = heartbeat.current()
    if heart is not None and heart.loss is not None:
        heart.answered.set()
        raise ProcessLost(heart.loss.line, heart.loss.is_ours_to_say)


def _finish(work: dist.Work) -> None:
    """Wait for the others: for ever if they are slow, and no longer if one is gone. Signals are heard meanwhile."""
    heart = heartbeat.current()
    if heart is None:
        work.wait()
        return
    with heart.waiting():
        while not work.is_completed():
            check_processes()
            with suppress(RuntimeError):  # a second has passed, or the work has failed
                work.wait(A_SECOND)
        try:
            work.wait()
        except RuntimeError as error:  # a connection broke: the heartbeat is about to know whose
            if heart.lost.wait(10):
                check_processes()
            why = str(error).splitlines()[0]
            raise ProcessLost(f"the connection between processes broke: {why}", heart.rank == 0) from error


def _sized(payload: Tensor, size: int, device: torch.device) -> Tensor:
    if len(payload) == size:
        return payload.to(device)
    return torch.empty(size, dtype=torch.uint8, device=device)
