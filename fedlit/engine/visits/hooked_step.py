"""A step with Lightning's hooks, in the order in which its Trainer calls them.

Law: a visit of one client calls what `Trainer.fit` calls, and ends with the same weights, bit for bit.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim import LBFGS

from fedlit.engine.module.precision import autocast
from fedlit.engine.usage import UsageError
from fedlit.engine.visits.lightning_hooks import STEP_HOOKS, overridden
from fedlit.engine.visits.step_contract import loss_of, takes_batch_idx
from fedlit.engine.visits.visit_trainer import VisitTrainer
from fedlit.methods.base import FederatedModule


def wants_hooks(learner: FederatedModule, trainer: VisitTrainer) -> bool:
    """Whether a step is more than forward, backward and update."""
    if trainer.lr_scheduler_configs or not learner.automatic_optimization:
        return True
    if overridden(learner, STEP_HOOKS):
        return True
    optimizer = trainer.optimizers[0]
    # Others may call the closure again, or look at gradients before it: under the Trainer, the step computes them.
    is_ordinary = type(optimizer).__module__.startswith("torch.optim.") and not isinstance(optimizer, LBFGS)
    return not is_ordinary or bool(optimizer._optimizer_step_pre_hooks)


class HookedStep:
    """The steps of a visit, with every hook.

    Args:
        learner: What is trained.
        trainer: Of the visit; it has the optimisers and their schedulers.
        num_batches: Of an epoch.
    """

    def __init__(self, learner: FederatedModule, trainer: VisitTrainer, num_batches: int) -> None:
        self.learner = learner
        self.trainer = trainer
        self.num_batches = num_batches
        self.context = autocast(trainer.fabric)
        self.takes_batch_idx = takes_batch_idx(learner.training_step)
        self.has_loss: bool | None = None  # the last one; None if the optimisation is manual

    def __call__(self, batch: tuple[Any, ...], batch_idx: int) -> bool:
        """One batch; whether the epoch goes on after it."""
        is_skipped = self.learner.on_train_batch_start(batch, batch_idx) == -1
        outputs: dict[str, Any] = {}
        if is_skipped:
            pass
        elif self.learner.automatic_optimization:
            outputs = self._automatic(batch, batch_idx)
        else:
            outputs = self._manual(batch, batch_idx)
        self._update_rates("step", batch_idx)
        if is_skipped or batch_idx + 1 == self.num_batches:
            self._update_rates("epoch", self.trainer.current_epoch)
        if not is_skipped:
            self.learner.on_train_batch_end(outputs, batch, batch_idx)  # type: ignore[arg-type]
        return not is_skipped

    def _training_step(self, batch: tuple[Any, ...], batch_idx: int) -> Any:
        arguments = (batch, batch_idx) if self.takes_batch_idx else (batch,)
        with self.context():
            return self.learner.training_step(*arguments)  # type: ignore[arg-type]

    def _manual(self, batch: tuple[Any, ...], batch_idx: int) -> dict[str, Any]:
        result = self._training_step(batch, batch_idx)
        if result is None:
            return {}
        outputs = dict(result) if isinstance(result, Mapping) else {"loss": result}
        if "loss" in outputs:
            outputs["loss"] = outputs["loss"].detach()
        return outputs

    def _automatic(self, batch: tuple[Any, ...], batch_idx: int) -> dict[str, Any]:
        learner = self.learner
        trainer = self.trainer
        optimizer = trainer.optimizers[0]
        outputs: dict[str, Any] = {}

        def closure() -> Tensor | None:
            outputs.clear()
            result = self._training_step(batch, batch_idx)
            loss = loss_of(result)
            self.has_loss = loss is not None
            learner.on_before_zero_grad(optimizer)
            learner.optimizer_zero_grad(trainer.current_epoch, batch_idx, optimizer)
            if loss is None:
                return None
            trainer.strategy.backward(loss, optimizer)
            outputs.update(result if isinstance(result, Mapping) else {})
            outputs["loss"] = loss.detach().clone()
            return outputs["loss"]

        wrapped = trainer.strategy._lightning_optimizers[0]
        learner.optimizer_step(trainer.current_epoch, batch_idx, wrapped, closure)
        trainer.global_step += 1
        return outputs

    def _update_rates(self, interval: str, number: int, on_plateau: bool = False) -> None:
        if not self.learner.automatic_optimization:
            return  # it steps its schedulers itself
        for config in self.trainer.lr_scheduler_configs:
            is_due = config.interval == interval and (number + 1) % config.frequency == 0
            if is_due and config.reduce_on_plateau == on_plateau:
                value = self._monitored(config.monitor, config.strict) if on_plateau else None
                if value is not None or not on_plateau:
                    self.learner.lr_scheduler_step(config.scheduler, value)

    def _monitored(self, name: str | None, is_strict: bool) -> Tensor | None:
        known = self.trainer.callback_metrics
        if name not in known and is_strict:
            raise UsageError(
                f"`configure_optimizers`: ReduceLROnPlateau waits for {name!r}, which was not logged; "
                f"there are {', '.join(known) or 'none'}."
            )
        return known.get(str(name))

    def after_epoch(self) -> None:
        """Schedules that wait for a value have it now."""
        self._update_rates("epoch", self.trainer.current_epoch, on_plateau=True)
