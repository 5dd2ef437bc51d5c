"""A training step without hooks: forward, backward and update."""

from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor
from torch.optim import Optimizer

from fedlit.engine.module.precision import autocast, has_scaler
from fedlit.engine.visits.step_contract import loss_of, takes_batch_idx
from fedlit.fast.sgd import clear, is_plain_sgd, step
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
        self.clears_plainly = type(self.optimizer).zero_grad is Optimizer.zero_grad

    def __call__(self, batch: tuple[Any, ...], batch_idx: int) -> None:
        """One batch."""
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

    def _clear(self) -> None:
        if self.clears_plainly:
            clear(self.optimizer)
        else:
            self.optimizer.zero_grad()

    def _step(self) -> None:
        if self.is_scaled:
            self.fabric.strategy.optimizer_step(self.optimizer)
        elif is_plain_sgd(self.optimizer):  # asked in every step: hooks and schedules of a user change its options
            step(self.optimizer)
        else:
            self.optimizer.step()

    def _clip(self, clip: float) -> None:
        if self.is_scaled:
            self.fabric.strategy.precision.unscale_gradients(self.optimizer)
        for group in self.optimizer.param_groups:
            torch.nn.utils.clip_grad_norm_(group["params"], clip)
