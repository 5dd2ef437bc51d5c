"""Clients on several processes: each process visits its share of a round's clients, and all hear of every outcome.

Outcomes are passed on in client order, so every process adds the same numbers in the same order as a single one would.
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
HELD = 16  # results of a process before they are passed on; the more, the less processes wait for each other


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
    fabric: Fabric, tasks: Sequence[int], work: Callable[[int], Result], pack: Callable, unpack: Callable
) -> Iterator[tuple[int, Result]]:
    """`work` on every task, spread over the processes, with every result on every process in the order of the tasks.

    On one process a task is worked on only when its result is asked for, so a consumer that keeps nothing needs the
    memory of one result; on several, of a few. `pack` and `unpack` turn a result into containers of tensors and back.
    """
    if fabric.world_size == 1:
        yield from ((task, work(task)) for task in tasks)
        return
    rank = fabric.global_rank
    world_size = fabric.world_size
    size = HELD * world_size
    for start in range(0, len(tasks), size):
        some = tasks[start : start + size]
        mine = {task: pack(work(task)) for task in some[rank::world_size]}
        for position, task in enumerate(some):
            yield task, unpack(broadcast(fabric, mine.pop(task, None), source=position % world_size))


def broadcast(fabric: Fabric, value: Any, source: int = 0) -> Any:
    """The source's value on every process. Tensors, numbers, strings and containers of them; nothing is unpickled."""
    if fabric.world_size == 1:
        return value
    payload = torch.empty(0, dtype=torch.uint8)
    if fabric.global_rank == source:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        payload = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    size = torch.tensor([len(payload)], device=wire(fabric.device))
    _finish(dist.broadcast(size, source, async_op=True))
    data = _sized(payload, int(size), size.device)
    _finish(dist.broadcast(data, source, async_op=True))
    return torch.load(io.BytesIO(data.cpu().numpy().tobytes()), weights_only=True, map_location=fabric.device)


def largest(fabric: Fabric, *numbers: int) -> list[int]:
    """Of each number, the largest that any process gives."""
    if fabric.world_size == 1:
        return [*numbers]
    seen = torch.tensor(numbers, device=wire(fabric.device))
    _finish(dist.all_reduce(seen, dist.ReduceOp.MAX, async_op=True))
    return seen.tolist()


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
