"""Precision, as Fabric names it: what a step is wrapped in, and whether this machine can do it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.plugins.precision import Precision
from lightning_utilities.core.apply_func import apply_to_collection

from fedlit.data.batches import Batches

# bf16 on some CPUs that claim the instructions dies of SIGILL: only another process can find out.
PROBE = """
import torch
with torch.autocast("cpu", dtype=torch.bfloat16):
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Flatten(), torch.nn.Linear(8 * 900, 10))
    net(torch.randn(4, 3, 32, 32)).sum().backward()
"""


def autocast(fabric: Fabric) -> Callable[[], AbstractContextManager]:
    """The context of a forward pass. (A module's own `training_step` is not autocast by Fabric on one device.)"""
    return nullcontext if fabric.strategy.precision.precision == "32-true" else fabric.autocast


def has_scaler(fabric: Fabric) -> bool:
    """Whether gradients are scaled (16-mixed), so that backward and step must go through Fabric."""
    return getattr(fabric.strategy.precision, "scaler", None) is not None


class Scaler(torch.amp.GradScaler):
    """The loss scale of one local training, which begins with what an earlier one has kept.

    Args:
        device: Type of the device.
        kept: From `kept`; None begins with PyTorch's default, 65536.
    """

    def __init__(self, device: str, kept: dict[str, Any] | None) -> None:
        super().__init__(device)
        if kept is not None:
            self.load_state_dict(kept)
        self.first_scale = self.get_scale()
        self.num_updates = 0

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """After each step."""
        super().update(new_scale)
        self.num_updates += 1

    def num_all_skipped(self) -> int:
        """Steps, if every one was skipped because gradients overflowed; else 0.

        Each of these lowers the scale by the same factor, and nothing else does: no step has to be waited for.
        """
        is_lowest = self.get_scale() <= self.first_scale * self.get_backoff_factor() ** self.num_updates
        return self.num_updates if is_lowest else 0

    def kept(self) -> dict[str, Any]:
        """The scale that the client's next local training begins with, as plain numbers.

        A scale below 1 is of gradients that are no numbers at any scale, and would make all others vanish.
        """
        state = self.state_dict()
        return {**state, "scale": max(state["scale"], 1.0)}


def renew_scaler(fabric: Fabric, kept: dict[str, Any] | None = None) -> Scaler | None:
    """A scale that does not depend on which client came before; None without one."""
    if not has_scaler(fabric):
        return None
    scaler = Scaler(fabric.device.type, kept)
    setattr(fabric.strategy.precision, "scaler", scaler)  # noqa: B010  (only some precisions have one)
    return scaler


def check_precision(fabric: Fabric) -> None:
    """Refuse a precision that would kill the process later."""
    precision = fabric.strategy.precision.precision
    if fabric.device.type != "cpu" or precision not in ("bf16-mixed", "bf16-true"):
        return
    if subprocess.run([sys.executable, "-P", "-c", PROBE], capture_output=True).returncode != 0:
        raise ValueError(f"`trainer.precision: {precision}` does not work on this CPU (a trial run died); use 32-true.")


def convert_input(fabric: Fabric, x: Any) -> Any:
    """Floats, of a tensor or a tree of them, in the dtype of the precision; whole numbers stay what they are."""
    precision = fabric.strategy.precision
    if type(precision) is Precision:  # the default's own does nothing: data are single, as a rule
        return mapped_tensors(_single, x)
    return precision.convert_input(x)


def mapped_tensors(function: Callable[[torch.Tensor], torch.Tensor], x: Any) -> Any:
    """A function of every tensor of a tree; of one that is no tree, without looking for others."""
    return function(x) if isinstance(x, torch.Tensor) else apply_to_collection(x, torch.Tensor, function)


def widened(output: Any) -> Any:
    """Outputs of half precision in single precision, of a tensor or a tree of them."""
    return mapped_tensors(_widened, output)


def _widened(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def _single(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.float() if tensor.is_floating_point() else tensor


def converted(fabric: Fabric, batches: Batches) -> "Batches | Converted":
    """Batches whose floats have the dtype of the precision; the very same where they have it already."""
    is_single = type(fabric.strategy.precision) is Precision
    if is_single and batches.is_in_memory and _has_it(batches.samples.x) and _has_it(batches.samples.y):
        return batches
    return Converted(fabric, batches)


def _has_it(tensor: object) -> bool:
    """Whether a tensor is of single precision, or of whole numbers."""
    return isinstance(tensor, torch.Tensor) and (tensor.dtype == torch.float32 or not tensor.is_floating_point())


class Converted:
    """Batches with the dtype of the precision."""

    def __init__(self, fabric: Fabric, batches: Batches) -> None:
        self.fabric = fabric
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[tuple[Any, ...]]:
        for x, y, *index in self.batches:
            yield convert_input(self.fabric, x), convert_input(self.fabric, y), *index
