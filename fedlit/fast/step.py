"""One step down the gradient, as cheap as PyTorch allows.

An optimiser's `step` spends more time around the update of a small network than on it. Plain SGD needs none of that:
the same update is one call, to the bit. `optimizer.step` itself is the twin that it must agree with.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from itertools import chain
from typing import Any, TypeGuard

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import SGD, Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from fedlit.engine.lightning_hooks import STEP_HOOKS, overridden
from fedlit.engine.precision import autocast, convert_input, has_scaler
from fedlit.engine.step_contract import loss_of, takes_batch_idx
from fedlit.fast.perceptron import ClosedForm
from fedlit.methods.base import FederatedModule

KNOWN = (SGD, torch.optim.Adam, torch.optim.AdamW)


def prepare(optimizer: Optimizer, fast: bool) -> None:
    """Choose the form of an update, unless its user has: on a CPU, `foreach` has the bits of a loop, `fused` others."""
    for group in optimizer.param_groups if type(optimizer) in KNOWN else ():
        chosen = group["foreach"] is not None or group["fused"] is not None or group["differentiable"]
        has_tensors = any(isinstance(value, Tensor) for value in (group["lr"], *group.get("betas", ())))
        if not chosen and not has_tensors and all(parameter.is_cpu for parameter in group["params"]):
            group["fused" if fast else "foreach"] = True


def is_plain(optimizer: Optimizer) -> TypeGuard[SGD]:
    """Whether it is SGD that only adds the gradient times the learning rate, and nobody watches."""
    if type(optimizer) is not SGD or "step" in vars(optimizer):
        return False
    watched = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _global_optimizer_pre_hooks,
        _global_optimizer_post_hooks,
    )
    if any(watched):
        return False
    return all(
        isinstance(group["lr"], float | int)
        and not any(group[name] for name in ("momentum", "weight_decay", "maximize", "differentiable"))
        for group in optimizer.param_groups
    )


def plain_clear_and_step(optimizer: SGD) -> tuple[Callable[[], None], Callable[[], None]]:
    """`optimizer.zero_grad` and `optimizer.step` of plain SGD, for less."""
    parameters = list(chain.from_iterable(group["params"] for group in optimizer.param_groups))

    def clear() -> None:
        for parameter in parameters:
            parameter.grad = None

    @torch.no_grad()
    def step() -> None:
        for group in optimizer.param_groups:
            trained = [parameter for parameter in group["params"] if parameter.grad is not None]
            if trained:
                torch._foreach_add_(trained, [parameter.grad for parameter in trained], alpha=-group["lr"])

    return clear, step


class Descent:
    """The steps of a visit whose method has no hooks of its own around them.

    Args:
        fabric: Precision.
        learner: What is trained; its `fast` allows other rounding.
        optimizers: Its own; with automatic optimisation, one.
        clip: Largest norm of the gradient of each group; None does not clip.
    """

    def __init__(
        self, fabric: Fabric, learner: FederatedModule, optimizers: list[Optimizer], clip: float | None
    ) -> None:
        self.fabric = fabric
        self.learner = learner
        self.optimizer = optimizers[0]
        self.clip = clip
        self.context = autocast(fabric)
        self.is_scaled = has_scaler(fabric)
        self.takes_batch_idx = takes_batch_idx(learner.training_step)
        self.clear: Callable[[], object] = self.optimizer.zero_grad
        self.step: Callable[[], object] = self.optimizer.step
        self.closed_form: ClosedForm | None = None
        if self.is_scaled:
            self.step = partial(fabric.strategy.optimizer_step, self.optimizer)
        elif is_plain(self.optimizer):
            self.clear, self.step = plain_clear_and_step(self.optimizer)
            if clip is None and self.context is nullcontext and not overridden(learner, STEP_HOOKS):
                self.closed_form = ClosedForm.of(learner, self.optimizer)

    def __call__(self, batch: tuple[Tensor, ...], batch_idx: int) -> None:
        """One batch."""
        if self.closed_form is not None and not batch[1].is_floating_point():  # as targets may be
            self.learner.log("train_loss", self.closed_form(*batch))
            return
        if self.context is not nullcontext:
            batch = (convert_input(self.fabric, batch[0]), *batch[1:])
        with self.context():
            result = self._result(batch, batch_idx)
        if not self.learner.automatic_optimization:
            return
        loss = result if isinstance(result, Tensor) else loss_of(result)
        if loss is None:
            return
        self.clear()
        if self.is_scaled:
            self.fabric.backward(loss)
        else:
            loss.backward()
        if self.clip is not None:
            self._clip(self.clip)
        self.step()

    def _result(self, batch: Any, batch_idx: int) -> Any:
        if self.takes_batch_idx:
            return self.learner.training_step(batch, batch_idx)
        return self.learner.training_step(batch)  # type: ignore[call-arg]

    def _clip(self, clip: float) -> None:
        if self.is_scaled:
            self.fabric.strategy.precision.unscale_gradients(self.optimizer)
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], clip)
