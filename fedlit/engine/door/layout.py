"""How kernels of images are held: channels last is faster on a CPU, but a network may count on the ordinary layout.

`x.view` and `weight.view` need their numbers in one order, which is not that of channels last.
"""

import warnings

import torch
from lightning.fabric import Fabric
from torch import Tensor

from fedlit.data import FederatedData
from fedlit.engine.door.network_checks import networks_to_try
from fedlit.engine.module.precision import autocast
from fedlit.fast.memory import lay_out
from fedlit.methods.base import FederatedModule
from fedlit.notices import Notice


def layout_for(model: FederatedModule, data: FederatedData, fabric: Fabric, fast: bool) -> torch.memory_format:
    """Channels last in fast mode, where the networks of all kinds of clients run with it."""
    if not fast:
        return torch.contiguous_format
    for trial, _, x in networks_to_try(model, data, fabric):
        with autocast(fabric)():
            problem = _problem(trial, x)
        if problem:
            told = (
                f"`trainer.fast`: kernels of {type(model).__name__} keep their layout; in that of fast mode, {problem}"
            )
            warnings.warn(told, Notice, stacklevel=2)
            return torch.contiguous_format
    return torch.channels_last


@torch.no_grad()
def _problem(trial: FederatedModule, x: Tensor) -> str | None:
    """What goes wrong with kernels channels last; the networks are known to run as they are."""
    lay_out(trial, torch.channels_last)
    try:
        trial(x)
        trial.global_model()(x)
    except Exception as error:
        return (str(error).splitlines() or [type(error).__name__])[0]
    return None
