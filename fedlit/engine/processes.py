"""Clients on several processes: each process visits its share of a round's clients, and all hear of every outcome.

Outcomes are passed on in client order, so every process adds the same numbers in the same order as a single one would.
"""

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from lightning.fabric import Fabric
from lightning.fabric.strategies import DDPStrategy
from torch import Tensor, nn

Result = TypeVar("Result")
HELD = 16  # results of a process before they are passed on; the more, the less processes wait for each other


class ClientParallelStrategy(DDPStrategy):
    """Processes that share no module: DDP would average gradients of clients, and forbid different networks."""

    @property
    def distributed_sampler_kwargs(self) -> None:  # type: ignore[override]  # Fabric asks whether it is None
        return None

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]  # not wrapped, on purpose
        return module


def make_fabric(accelerator: str, devices: int | str, num_nodes: int, precision: Any) -> Fabric:
    """Fabric as the user's options have it; several processes share clients, not gradients."""
    several = num_nodes > 1 or str(devices) not in ("1", "auto")
    try:
        strategy = ClientParallelStrategy() if several else "auto"
        return Fabric(
            accelerator=accelerator, strategy=strategy, devices=devices, num_nodes=num_nodes, precision=precision
        )
    except Exception as error:  # Fabric raises many kinds
        given = f"`trainer.accelerator` {accelerator}, `trainer.devices` {devices}, `trainer.num_nodes` {num_nodes}"
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"{given} with `trainer.precision` {precision} cannot be had here: {why}") from error


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
    size = torch.tensor([len(payload)], device=fabric.device)
    dist.broadcast(size, source)
    data = _sized(payload, int(size), fabric)
    dist.broadcast(data, source)
    return torch.load(io.BytesIO(data.cpu().numpy().tobytes()), weights_only=True, map_location=fabric.device)


def any_process(fabric: Fabric, flag: bool) -> bool:
    """Whether the flag is set on any process."""
    if fabric.world_size == 1:
        return flag
    seen = torch.tensor([int(flag)], device=fabric.device)
    dist.all_reduce(seen, dist.ReduceOp.MAX)
    return bool(seen)


def _sized(payload: Tensor, size: int, fabric: Fabric) -> Tensor:
    if len(payload) == size:
        return payload.to(fabric.device)
    return torch.empty(size, dtype=torch.uint8, device=fabric.device)
