"""What a method finds as `self.trainer` in a visit: as much of Lightning's Trainer as a visit has.

Lightning's own `optimizers`, `lr_schedulers`, `manual_backward`, `toggle_optimizer`, `clip_gradients`, `print` ask it.
"""

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, NoReturn

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from fedlit.data.client import Client
from fedlit.engine.module.means import EpochMeans, Means
from fedlit.engine.module.precision import has_scaler
from fedlit.engine.plan import Plan
from fedlit.engine.usage import NoSuchAttribute, UsageError
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage

OF_LOGS = {"logger", "loggers", "logs", "validation_forks", "validation_logs"}
INTERNAL = {"plan", "precision_plugin", "strategy", "take"} | OF_LOGS


class VisitTrainer:
    """A visit, as Lightning's methods see it.

    Args:
        fabric: Device, precision and processes.
        learner: What is trained.
        client: Whose visit.
        plan: How it trains.
        logs: What it has logged so far.
    """

    accumulate_grad_batches = 1
    barebones = False
    gradient_clip_algorithm = None
    num_sanity_val_steps = 0
    progress_bar_callback = None
    sanity_checking = False
    testing = False
    predicting = False
    validating = False
    should_stop = False
    current_epoch = 0
    global_step = 0

    def __init__(self, fabric: Fabric, learner: FederatedModule, client: Client, plan: Plan, logs: Means) -> None:
        self.fabric = fabric
        self.lightning_module = learner
        self.model = learner
        self.client = client
        self.plan = plan
        self.logs: Means | EpochMeans = logs
        self.validation_logs: dict[str, float] = {}
        self.validation_forks: dict[str, float] = {}  # what validation logged both on_step and on_epoch
        self.optimizers: list[Optimizer] = []
        self.lr_scheduler_configs: list[LRSchedulerConfig] = []
        self.strategy = VisitStrategy(self)
        self.precision_plugin = self.strategy

    def __deepcopy__(self, memo: dict) -> "VisitTrainer":
        """A copy of a network that is made in a visit is of the same visit."""
        return self

    def __getattr__(self, name: str) -> NoReturn:
        offered = {*vars(VisitTrainer), *vars(self)} - INTERNAL
        known = ", ".join(sorted(known for known in offered if not known.startswith("_")))
        raise NoSuchAttribute(f"`self.trainer.{name}` has no meaning in a visit of a federation; there are {known}.")

    @property
    def training(self) -> bool:
        return not self.validating

    @property
    def max_epochs(self) -> int:
        """Local epochs of this visit; -1 if it counts steps."""
        return self.plan.epochs if self.plan.steps is None else -1

    @property
    def max_steps(self) -> int:
        """Local steps of this visit; -1 if it counts epochs."""
        return -1 if self.plan.steps is None else self.plan.steps

    @property
    def num_training_batches(self) -> int:
        """Batches of a local epoch."""
        return self.plan.num_batches(self._available)

    @property
    def estimated_stepping_batches(self) -> int:
        """Steps of this visit, such as for a schedule that ends with it."""
        return self.plan.num_steps(self._available)

    @property
    def _available(self) -> int:
        """Batches of an epoch that there are."""
        return len(self.client.train_batches(None, self.plan.stage.samples, self.plan.stage.public))

    @property
    def gradient_clip_val(self) -> float | None:
        return self.plan.gradient_clip_val

    @property
    def callback_metrics(self) -> dict[str, Tensor]:
        """What was logged: of the visit so far, or of the epoch if a schedule waits for it; of the last validation."""
        if isinstance(self.logs, EpochMeans):
            epoch = self.logs.epoch
            known = self.logs.visit.result() | epoch.result() | epoch.by_step_and_epoch()
        else:
            known = self.logs.result() | self.logs.by_step_and_epoch()
        known |= self.validation_logs | self.validation_forks
        return {name: torch.tensor(value) for name, value in known.items()}

    @property
    def logged_metrics(self) -> dict[str, Tensor]:
        return self.callback_metrics

    @property
    def datamodule(self) -> Any:
        return self.client.data

    @property
    def is_global_zero(self) -> bool:
        return self.fabric.is_global_zero

    @property
    def global_rank(self) -> int:
        return self.fabric.global_rank

    @property
    def local_rank(self) -> int:
        return self.fabric.local_rank

    @property
    def world_size(self) -> int:
        return self.fabric.world_size

    @property
    def logger(self) -> NoReturn:
        # No AttributeError: a module's own property would swallow it.
        raise UsageError("`self.logger` is told by the federation, round by round; use `self.log` in a visit.")

    @property
    def loggers(self) -> NoReturn:
        raise UsageError("`self.loggers` are told by the federation, round by round; use `self.log` in a visit.")

    def take(self, optimizers: list[Optimizer], schedulers: list[LRSchedulerConfig]) -> None:
        """What `configure_optimizers` gave."""
        self.optimizers = optimizers
        self.lr_scheduler_configs = schedulers


class VisitStrategy:
    """What Lightning's methods ask of a Trainer's strategy and precision.

    Args:
        trainer: Of the visit.
    """

    def __init__(self, trainer: VisitTrainer) -> None:
        # In a circle, networks of clients and their gradients would stay until Python's collector comes by.
        self.trainer: VisitTrainer = weakref.proxy(trainer)

    @cached_property
    def _lightning_optimizers(self) -> list["VisitOptimizer"]:
        """Where `LightningModule.optimizers` looks; each is a class of its own, which takes a moment to make."""
        return [VisitOptimizer(optimizer, self.trainer) for optimizer in self.trainer.optimizers]

    def backward(self, loss: Tensor, optimizer: Optimizer | None, *args: Any, **options: Any) -> None:
        """Backward with its hooks."""
        learner = self.trainer.lightning_module
        if has_scaler(self.trainer.fabric):
            loss = self.trainer.fabric.strategy.precision.scaler.scale(loss)  # type: ignore[attr-defined]
        learner.on_before_backward(loss)
        learner.backward(loss, *args, **options)
        learner.on_after_backward()

    def clip_gradients(self, optimizer: Optimizer, clip_val: float, gradient_clip_algorithm: Any) -> None:
        """Clip each group by itself, as `trainer.gradient_clip_val` does; 0 does not."""
        if clip_val <= 0:
            return
        for group in optimizer.param_groups:
            if gradient_clip_algorithm == "value":
                torch.nn.utils.clip_grad_value_(group["params"], clip_val)
            else:
                torch.nn.utils.clip_grad_norm_(group["params"], clip_val)

    def all_gather(self, *args: Any, **options: Any) -> NoReturn:
        raise UsageError("`self.all_gather` has no meaning in a visit: every process has a client of its own.")


class VisitOptimizer(LightningOptimizer):
    """An optimiser whose step has Lightning's hooks.

    Args:
        optimizer: As it was configured.
        trainer: Of the visit.
    """

    def __init__(self, optimizer: Optimizer, trainer: VisitTrainer) -> None:
        super().__init__(optimizer)
        self._trainer = trainer

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Compute gradients by the closure, if there is one, tell and clip, then update."""
        trainer = self._trainer

        def compute() -> Any:
            loss = None if closure is None else closure()
            if has_scaler(trainer.fabric):
                trainer.fabric.strategy.precision.unscale_gradients(self.optimizer)
            learner = trainer.lightning_module
            learner.on_before_optimizer_step(self.optimizer)
            if learner.automatic_optimization:
                _clip(learner, self.optimizer, trainer)
            return loss

        if has_scaler(trainer.fabric):
            loss = compute()
            trainer.fabric.strategy.optimizer_step(self.optimizer, **options)
        else:
            loss = self.optimizer.step(closure=compute, **options)
        if not trainer.lightning_module.automatic_optimization:
            trainer.global_step += 1
        return loss

    @contextmanager
    def toggle_model(self, sync_grad: bool = True) -> Iterator[None]:
        learner = self._trainer.lightning_module
        learner.toggle_optimizer(self)
        yield
        learner.untoggle_optimizer(self)


def _clip(learner: FederatedModule, optimizer: Optimizer, trainer: VisitTrainer) -> None:
    clip = trainer.gradient_clip_val
    learner.configure_gradient_clipping(optimizer, gradient_clip_val=clip, gradient_clip_algorithm=None)


@contextmanager
def attached(parts: Iterable[LightningModule], trainer: VisitTrainer) -> Iterator[None]:
    """Let a method and its parts find the local training as `self.trainer`."""
    before = [(part, part._trainer, part._fabric) for part in parts]
    for part, _, _ in before:
        part._trainer = trainer  # type: ignore[assignment]  # the public setter walks all children
        part._fabric = None  # or Lightning would ask Fabric, which knows no hooks
    try:
        yield
    finally:
        for part, old_trainer, fabric in before:
            part._trainer = old_trainer
            part._fabric = fabric


@contextmanager
def at_the_door(method: FederatedModule, client: Client, fabric: Fabric) -> Iterator[None]:
    """The same before the first round, for what is tried then: as if a visit of one epoch were to begin."""
    plan = Plan(Stage("door"), seed=0)
    parts = [part for part in method.modules() if isinstance(part, LightningModule)]
    with attached(parts, VisitTrainer(fabric, method, client, plan, Means())):
        yield
