"""What a network gives for samples, in evaluation mode: batch by batch, or as one tensor of logits."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from fedlit.data.batches import Batches
from fedlit.data.loaded import AnyBatches
from fedlit.engine.module.modes import modes_of, restore
from fedlit.engine.module.precision import autocast, convert_input, mapped_tensors
from fedlit.inputs import applied
from fedlit.rng import isolated, torch_states
from fedlit.tasks import Classification, Task

CLASSES = Classification()


def each_output(fabric: Fabric, network: nn.Module, batches: AnyBatches) -> Iterator[tuple[Any, Any]]:
    """What a network gives for each batch, in single precision at least, and the batch's targets, on the device."""
    modes = modes_of(network)
    network.eval()
    context = autocast(fabric)
    try:
        for x, y in batches:
            x = convert_input(fabric, _moved(x, fabric.device))
            with torch.no_grad(), context():
                output = applied(network, x)
            target = convert_input(fabric, _moved(y, fabric.device))
            yield mapped_tensors(_widened, output), target
    finally:
        restore(modes)


def _moved(batch: Any, device: torch.device) -> Any:
    if isinstance(batch, Tensor) and batch.device == device:  # most are, and to ask takes longer than a small batch
        return batch
    return move_data_to_device(batch, device)


def _widened(output: Tensor) -> Tensor:
    return output.float() if output.dtype in (torch.float16, torch.bfloat16) else output


def outputs(fabric: Fabric, network: nn.Module, batches: AnyBatches) -> tuple[Tensor, Tensor]:
    """Logits ``[N, C]`` and targets ``[N]`` of all batches."""
    logits: list[Tensor] = []
    targets: list[Tensor] = []
    for output, target in each_output(fabric, network, batches):
        logits.append(CLASSES.output(output).float())
        targets.append(target)
    return torch.cat(logits).cpu(), torch.cat(targets).cpu()


def predictions(fabric: Fabric, network: nn.Module, batches: AnyBatches, task: Task) -> tuple[list[Tensor], list[Any]]:
    """What outputs mean, and the targets, of each batch."""
    found: list[Tensor] = []
    targets: list[Any] = []
    for output, target in each_output(fabric, network, batches):
        found.append(task.prediction(output).cpu())
        targets.append(move_data_to_device(target, torch.device("cpu")))
    return found, targets


def sees_samples_apart(fabric: Fabric, network: nn.Module, batches: AnyBatches) -> bool:
    """Whether what a network says of a sample depends neither on others in its batch nor on chance: tried on these.

    BatchNorm without running statistics does the one, dropout that never sleeps the other. Then clients must not share
    a batch: who stands beside whom depends on the number of processes.
    """
    if not isinstance(batches, Batches):  # they would have to be read twice
        return False
    with isolated(0):
        before = torch_states()
        try:
            half = batches.num_samples // 2
            parts = [slice(None, half), slice(half, None)]
            together, _ = outputs(fabric, network, replace(batches, batch_size=batches.num_samples))
            apart = torch.cat([outputs(fabric, network, _part(batches, part))[0] for part in parts])
        except Exception:  # its evaluation will tell, or its samples are no tensors that could be cut
            return False
        after = torch_states()
        draws = any(not torch.equal(state, after[device]) for device, state in before.items())
    scale = float(together.abs().nan_to_num().max())
    is_full = fabric.strategy.precision.precision in ("32-true", "64-true")
    tolerance = scale * (1e-4 if is_full else 3e-2)  # batches of another size round otherwise
    return not draws and torch.allclose(together, apart, rtol=0, atol=tolerance, equal_nan=True)


def _part(batches: Batches, part: slice) -> Batches:
    return replace(batches, x=batches.x[part], y=batches.y[part])
