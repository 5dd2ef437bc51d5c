"""An optimiser's update, as cheap as PyTorch allows.

An optimiser's `step` spends more time around the update of a small network than on it. Plain SGD needs none of that:
the same update is one call, to the bit. `optimizer.step` itself is the twin that it must agree with.
"""

import torch
from torch import Tensor
from torch.optim import SGD, Optimizer

KNOWN = (SGD, torch.optim.Adam, torch.optim.AdamW)


def prepare(optimizer: Optimizer, fast: bool) -> None:
    """Choose the form of an update, unless its user has: on a CPU, `foreach` has the bits of a loop, `fused` others."""
    for group in optimizer.param_groups if type(optimizer) in KNOWN else ():
        chosen = group["foreach"] is not None or group["fused"] is not None or group["differentiable"]
        has_tensors = any(isinstance(value, Tensor) for value in (group["lr"], *group.get("betas", ())))
        if not chosen and not has_tensors and all(parameter.is_cpu for parameter in group["params"]):
            group["fused" if fast else "foreach"] = True


def is_plain_sgd(optimizer: Optimizer) -> bool:
    """Whether an optimiser only adds the gradient times the learning rate: SGD without options and without hooks."""
    if type(optimizer) is not SGD or optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    return all(_is_plain(group) for group in optimizer.param_groups)


def _is_plain(group: dict) -> bool:
    has_options = group["momentum"] or group["weight_decay"] or group["maximize"] or group["differentiable"]
    return not has_options and not isinstance(group["lr"], Tensor)


def clear(optimizer: Optimizer) -> None:
    """`optimizer.zero_grad` of PyTorch's own, for less."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad = None


@torch.no_grad()
def step(optimizer: Optimizer) -> None:
    """`optimizer.step` of plain SGD, for less."""
    for group in optimizer.param_groups:
        trained = [parameter for parameter in group["params"] if parameter.grad is not None]
        if trained:
            torch._foreach_add_(trained, [parameter.grad for parameter in trained], alpha=-group["lr"])
