"""Steps of SGD, Adam and AdamW with nothing around the update, to the bits of `optimizer.step`.

A step of PyTorch's spends more time on hooks, graphs, devices and profilers than on the update of a small network.
Here the update alone is made, by the same calls on lists of tensors. What is not plain goes to `optimizer.step`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

Group = dict[str, Any]

KNOWN = (SGD, Adam, AdamW)
SPECIAL = ("differentiable", "capturable", "amsgrad")  # options that ask for more than the update
FUSED_SGD = ("lr", "momentum", "weight_decay", "dampening", "nesterov", "maximize")


def prepare(optimizer: Optimizer, fast: bool) -> None:
    """Choose the form of an update, unless its user has: on a CPU, `foreach` has the bits of a loop, `fused` others."""
    for group in optimizer.param_groups if type(optimizer) in KNOWN else ():
        chosen = group["foreach"] is not None or group["fused"] is not None or group["differentiable"]
        if not chosen and not _has_tensors(group) and all(parameter.is_cpu for parameter in group["params"]):
            group["fused" if fast and _may_fuse(group) else "foreach"] = True


def _may_fuse(group: Group) -> bool:
    """A first step that is no other than the next; with dampening, SGD's is."""
    return not group.get("dampening")


def _begin_momenta(parameters: list[Tensor], state: dict[Tensor, Any]) -> None:
    """At rest: fused SGD takes momenta for all or for none, and a parameter may have its first gradient later."""
    for parameter in parameters:
        if state[parameter].get("momentum_buffer") is None:
            state[parameter]["momentum_buffer"] = torch.zeros_like(parameter, requires_grad=False)


def clear_of(optimizer: Optimizer) -> Callable[[], object]:
    """What takes the gradients away: `optimizer.zero_grad`, or the same for less where it is PyTorch's own."""
    if getattr(optimizer.zero_grad, "__func__", None) is Optimizer.zero_grad:
        return partial(_clear, optimizer.param_groups)
    return optimizer.zero_grad


def _clear(groups: list[Group]) -> None:
    for group in groups:
        for parameter in group["params"]:
            parameter.grad = None


def update_of(optimizer: Optimizer) -> Callable[[], object]:
    """What updates the parameters: `optimizer.step`, or the same for less where the optimiser is plain."""
    return partial(_update, optimizer) if is_plain(optimizer) else optimizer.step


def _update(optimizer: Optimizer) -> None:
    with torch.no_grad():
        for group in optimizer.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in parameters]
            if not parameters:
                continue
            if type(optimizer) is SGD:
                _sgd(group, parameters, gradients, optimizer.state)
            else:
                _adam(group, parameters, gradients, optimizer.state, is_decoupled=type(optimizer) is AdamW)


def is_plain(optimizer: Optimizer) -> bool:
    """Whether a step is the update and nothing else: no hooks, and options that the update below knows."""
    if type(optimizer) not in KNOWN:
        return False
    if "step" in vars(optimizer):  # a user's own, or a scheduler's that counts
        return False
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return False
    if _global_optimizer_pre_hooks or _global_optimizer_post_hooks:
        return False
    return all(_is_plain(group) for group in optimizer.param_groups)


def _is_plain(group: Group) -> bool:
    if _has_tensors(group) or any(group.get(name) for name in SPECIAL):
        return False
    if not group.get("momentum", True) and not group["weight_decay"] and not group["maximize"]:
        return True  # of SGD: what is added is the gradient, in any form and layout
    if group["foreach"] is False:
        return False
    if group["fused"] and not (_may_fuse(group) and _are_alike(group["params"])):
        return False
    return all(p.is_floating_point() and (p.grad is None or not p.grad.is_sparse) for p in group["params"])


def _are_alike(parameters: list[Tensor]) -> bool:
    """Whether one fused call takes them all."""
    return all(p.is_cpu for p in parameters) and len({p.dtype for p in parameters}) == 1


def _has_tensors(group: Group) -> bool:
    return isinstance(group["lr"], Tensor) or any(isinstance(beta, Tensor) for beta in group.get("betas", ()))


def _sgd(group: Group, parameters: list[Tensor], gradients: Any, state: dict[Tensor, Any]) -> None:
    if group["fused"] and group["momentum"]:
        _begin_momenta(parameters, state)
        buffers = [state[parameter]["momentum_buffer"] for parameter in parameters]
        settings = {name: group[name] for name in FUSED_SGD}
        torch._fused_sgd_(parameters, gradients, buffers, is_first_step=False, **settings)
        return
    if group["maximize"]:
        gradients = torch._foreach_neg(gradients)
    if group["weight_decay"]:
        gradients = torch._foreach_add(gradients, parameters, alpha=group["weight_decay"])
    if group["momentum"]:
        buffers = _momenta(group, parameters, gradients, state)
        gradients = torch._foreach_add(gradients, buffers, alpha=group["momentum"]) if group["nesterov"] else buffers
    torch._foreach_add_(parameters, gradients, alpha=-group["lr"])


def _momenta(group: Group, parameters: list[Tensor], gradients: Any, state: dict[Tensor, Any]) -> list[Tensor]:
    """What each parameter moves by, the first time its gradient."""
    buffers = [state[parameter].get("momentum_buffer") for parameter in parameters]
    known = [i for i, buffer in enumerate(buffers) if buffer is not None]
    if known:
        moving = [buffers[i] for i in known]
        torch._foreach_mul_(moving, group["momentum"])
        torch._foreach_add_(moving, [gradients[i] for i in known], alpha=1 - group["dampening"])
    for i, parameter in enumerate(parameters):
        if buffers[i] is None:
            buffers[i] = state[parameter]["momentum_buffer"] = gradients[i].detach().clone()
    return buffers


def _adam(group: Group, parameters: list[Tensor], gradients: Any, state: dict[Tensor, Any], is_decoupled: bool) -> None:
    lr = group["lr"]
    beta1, beta2 = group["betas"]
    decay = group["weight_decay"]
    entries = [state[parameter] or _begin_adam(parameter, state[parameter]) for parameter in parameters]
    steps = [entry["step"] for entry in entries]
    means = [entry["exp_avg"] for entry in entries]
    squares = [entry["exp_avg_sq"] for entry in entries]
    torch._foreach_add_(steps, torch.tensor(1.0), alpha=1.0)
    if group["fused"]:
        update = torch._fused_adamw_ if is_decoupled or group.get("decoupled_weight_decay") else torch._fused_adam_
        settings = {"lr": lr, "beta1": beta1, "beta2": beta2, "weight_decay": decay, "eps": group["eps"]}
        update(parameters, gradients, means, squares, [], steps, amsgrad=False, maximize=group["maximize"], **settings)
        return
    if group["maximize"]:
        gradients = torch._foreach_neg(gradients)
    if decay and (is_decoupled or group.get("decoupled_weight_decay")):
        torch._foreach_mul_(parameters, 1 - lr * decay)
    elif decay:
        gradients = torch._foreach_add(gradients, parameters, alpha=decay)
    torch._foreach_lerp_(means, gradients, 1 - beta1)
    torch._foreach_mul_(squares, beta2)
    torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
    counts = [step.item() for step in steps]
    roots = torch._foreach_sqrt(squares)
    if counts.count(counts[0]) == len(counts):  # unless a parameter had its first gradient later than others
        torch._foreach_div_(roots, (1 - beta2 ** counts[0]) ** 0.5)
        torch._foreach_add_(roots, group["eps"])
        torch._foreach_addcdiv_(parameters, means, roots, (lr / (1 - beta1 ** counts[0])) * -1)
        return
    torch._foreach_div_(roots, [(1 - beta2**count) ** 0.5 for count in counts])
    torch._foreach_add_(roots, group["eps"])
    torch._foreach_addcdiv_(parameters, means, roots, [(lr / (1 - beta1**count)) * -1 for count in counts])


def _begin_adam(parameter: Tensor, entry: dict[str, Tensor]) -> dict[str, Tensor]:
    is_double = torch.get_default_dtype() == torch.float64
    entry["step"] = torch.tensor(0.0, dtype=torch.float64 if is_double else torch.float32)
    entry["exp_avg"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    entry["exp_avg_sq"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
    return entry
