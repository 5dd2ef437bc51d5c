"""One step down the gradient, as cheap as PyTorch allows.

An optimiser's `step` spends more time around the update of a small network than on it. Plain SGD needs none of that:
the same update is one call, to the bit. `optimizer.step` itself is the twin that it must agree with.
"""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import chain

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import SGD, Optimizer

from fedlit.engine.precision import autocast, convert_input, has_scaler
from fedlit.fast.perceptron import ClosedForm
from fedlit.fast.permission import is_plain_sgd
from fedlit.methods.base import FederatedModule

KNOWN = (SGD, torch.optim.Adam, torch.optim.AdamW)


def prepare(optimizer: Optimizer, fast: bool) -> None:
    """Choose the form of an update, unless its user has: on a CPU, `foreach` has the bits of a loop, `fused` others."""
    for group in optimizer.param_groups if type(optimizer) in KNOWN else ():
        chosen = group["foreach"] is not None or group["fused"] is not None or group["differentiable"]
        has_tensors = any(isinstance(value, Tensor) for value in (group["lr"], *group.get("betas", ())))
        if not chosen and not has_tensors and all(parameter.is_cpu for parameter in group["params"]):
            group["fused" if fast else "foreach"] = True


def plain_clear_and_step(optimizer: Optimizer) -> tuple[Callable[[], None], Callable[[], None]]:
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
    """The steps of a visit.

    Args:
        fabric: Precision.
        learner: What is trained; its `fast` allows other rounding.
        optimizers: Its own; with automatic optimisation, one.
        clip: Largest norm of the gradient of each group; None does not clip.
    """

    def __init__(
        self, fabric: Fabric, learner: FederatedModule, optimizers: list[Optimizer], clip: float | None
    ) -> None:
        self.fabric, self.learner, self.optimizer, self.clip = fabric, learner, optimizers[0], clip
        self.context, self.is_scaled = autocast(fabric), has_scaler(fabric)
        self.clear, self.step = self.optimizer.zero_grad, self.optimizer.step
        self.closed_form = None
        if is_plain_sgd(self.optimizer):
            self.clear, self.step = plain_clear_and_step(self.optimizer)
            direct = clip is None and self.context is nullcontext
            self.closed_form = ClosedForm.of(learner, self.optimizer) if direct else None

    def __call__(self, batch: tuple[Tensor, ...], index: int) -> None:
        """One batch."""
        if self.closed_form is not None and self.closed_form.takes(batch):
            self.learner.log("train_loss", self.closed_form(*batch))
            return
        if self.context is not nullcontext:
            batch = (convert_input(self.fabric, batch[0]), *batch[1:])
        with self.context():
            loss = self.learner.training_step(batch, index)
        if not self.learner.automatic_optimization or loss is None:
            return
        self.clear()
        self.fabric.backward(loss) if self.is_scaled else loss.backward()
        if self.clip is not None and self.is_scaled:
            self.fabric.strategy.precision.unscale_gradients(self.optimizer)
        if self.clip is not None:
            for group in self.optimizer.param_groups:
                torch.nn.utils.clip_grad_norm_(group["params"], self.clip)
        self.step()
