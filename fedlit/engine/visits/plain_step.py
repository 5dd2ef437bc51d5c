"""A step without hooks: forward, backward and update, by a shortcut where one is permitted."""

from contextlib import nullcontext
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from fedlit.engine.module.precision import autocast, has_scaler
from fedlit.engine.visits.lightning_hooks import STEP_HOOKS, overridden
from fedlit.engine.visits.step_contract import loss_of, takes_batch_idx
from fedlit.fast.perceptron import ClosedForm
from fedlit.fast.permission import clears_plainly, is_plain_sgd
from fedlit.fast.sgd import clear, step
from fedlit.methods.base import FederatedModule


class PlainStep:
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
        self.has_loss: bool | None = None  # the last one; None if the optimisation is manual
        self.closed_form: ClosedForm | None = None
        is_plain = clip is None and not self.is_scaled and self.context is nullcontext
        if is_plain and not overridden(learner, STEP_HOOKS):
            self.closed_form = ClosedForm.of(learner, self.optimizer)

    def __call__(self, batch: tuple[Any, ...], batch_idx: int) -> None:
        """One batch."""
        if self.closed_form is not None and self.closed_form.takes(batch):
            self.learner.log("train_loss", self.closed_form(*batch))
            self.has_loss = True
            return
        with self.context():
            result = self._result(batch, batch_idx)
        if not self.learner.automatic_optimization:
            return
        loss = result if isinstance(result, Tensor) else loss_of(result)
        self.has_loss = loss is not None
        if loss is None:
            return
        self._clear()
        if self.is_scaled:
            self.fabric.backward(loss)
        else:
            loss.backward()
        if self.clip is not None:
            self._clip(self.clip)
        self._step()

    def _result(self, batch: Any, batch_idx: int) -> Any:
        if self.takes_batch_idx:
            return self.learner.training_step(batch, batch_idx)
        return self.learner.training_step(batch)  # type: ignore[call-arg]

    # An optimiser is asked anew in every step: a user's code may have changed it in this one.

    def _clear(self) -> None:
        if clears_plainly(self.optimizer):
            clear(self.optimizer)
        else:
            self.optimizer.zero_grad()

    def _step(self) -> None:
        if self.is_scaled:
            self.fabric.strategy.optimizer_step(self.optimizer)
        elif is_plain_sgd(self.optimizer):
            step(self.optimizer)
        else:
            self.optimizer.step()

    def _clip(self, clip: float) -> None:
        if self.is_scaled:
            self.fabric.strategy.precision.unscale_gradients(self.optimizer)
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], clip)
