"""Precision, as Fabric names it: what a step is wrapped in, and whether this machine can do it."""

import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from lightning.fabric import Fabric

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


def renew_scaler(fabric: Fabric) -> None:
    """A scale that adapted to one client must not depend on which client came before."""
    if has_scaler(fabric):
        scaler = torch.amp.GradScaler(fabric.device.type)
        setattr(fabric.strategy.precision, "scaler", scaler)  # noqa: B010  (only some precisions have one)


def check_precision(fabric: Fabric) -> None:
    """Refuse a precision that would kill the process later."""
    precision = fabric.strategy.precision.precision
    if fabric.device.type != "cpu" or precision not in ("bf16-mixed", "bf16-true"):
        return
    if subprocess.run([sys.executable, "-c", PROBE], capture_output=True).returncode != 0:
        raise ValueError(f"`trainer.precision: {precision}` does not work on this CPU (a trial run died); use 32-true.")


def convert_input(fabric: Fabric, x: torch.Tensor) -> torch.Tensor:
    """Inputs in the dtype that a true half or double precision wants."""
    return fabric.strategy.precision.convert_input(x)
