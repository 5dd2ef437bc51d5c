"""Lightning's contract in local training: its hooks, what a step returns, and what `self.trainer` is."""

import inspect
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, cached_property
from typing import Any, NoReturn
from weakref import WeakSet

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.core.optimizer import LightningOptimizer
from lightning.pytorch.utilities.types import LRSchedulerConfig
from torch import Tensor
from torch.optim import Optimizer

from fedlit.data.client import SERVER, Client
from fedlit.engine.logged_values import EpochMeans, Means
from fedlit.engine.plan import NoSuchAttribute, Plan, UsageError
from fedlit.engine.precision import has_scaler
from fedlit.inputs import POSITIONAL
from fedlit.methods.base import FederatedModule
from fedlit.notices import Notice

_WARNED: WeakSet[FederatedModule] = WeakSet()  # of no loss; attributes are restored after local training


def takes_batch_idx(step: Callable[..., Any]) -> bool:
    """Whether a step wants the number of its batch, too: a second argument of any name.

    Example:
        >>> takes_batch_idx(lambda batch: None), takes_batch_idx(lambda batch, i: None)
        (False, True)
    """
    function = getattr(step, "__func__", step)
    return _takes_two(function, function is not step)


@cache
def _takes_two(function: Callable[..., Any], is_bound: bool) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()][is_bound:]
    return inspect.Parameter.VAR_POSITIONAL in kinds or sum(kind in POSITIONAL for kind in kinds) >= 2


def step_loss(result: Any) -> Tensor | None:
    """The loss in what a step returns: itself, one under "loss", or None to skip the update."""
    if result is None or isinstance(result, Tensor):
        return result
    if isinstance(result, Mapping) and isinstance(result.get("loss"), Tensor):
        return result["loss"]
    hint = ""
    if isinstance(result, tuple):  # (loss, {...}), as other libraries have it
        hint = "; what is beside the loss goes into that mapping, or to `self.log`"
    raise UsageError(
        "`training_step` must return a loss, a mapping with one under 'loss', or None, as under the Trainer, got a "
        f"{type(result).__name__}{hint}."
    )


def warn_of_no_loss(learner: FederatedModule, client: int, num_steps: int) -> None:
    """Warn once per method that every step of a client, or of the server, returned None, which skips it."""
    if learner in _WARNED:
        return
    _WARNED.add(learner)
    who = "the server" if client == SERVER else f"client {client}"
    message = f"`training_step` of {type(learner).__name__} returned None in every step of {who} ({num_steps} in all)"
    warnings.warn(f"{message}, so nothing was trained; return a loss.", Notice, stacklevel=2)


INTERNAL = {"logs", "plan", "precision_plugin", "strategy", "validation_forks", "validation_logs"}
OF_FABRIC = ("is_global_zero", "global_rank", "local_rank", "world_size")


class LocalTrainer:
    """What a method finds as `self.trainer` in local training."""

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

    @cached_property
    def strategy(self) -> "LocalStrategy":
        """What Lightning's methods need of a strategy; few methods do."""
        return LocalStrategy(self)

    @property
    def precision_plugin(self) -> "LocalStrategy":
        return self.strategy

    def __deepcopy__(self, memo: dict) -> "LocalTrainer":
        """A copy of a network that is made in local training has the same trainer."""
        return self

    def __getattr__(self, name: str) -> Any:
        if name in OF_FABRIC:
            return getattr(self.fabric, name)
        if name in ("logger", "loggers"):  # no AttributeError: a module's own property would swallow it
            raise UsageError(f"`self.{name}` is the federation's, which writes after each round; use `self.log` here.")
        offered = {*vars(LocalTrainer), *vars(self), *OF_FABRIC} - INTERNAL
        known = ", ".join(sorted(known for known in offered if not known.startswith("_")))
        raise NoSuchAttribute(f"`self.trainer.{name}` has no meaning in local training; there are {known}.")

    @property
    def precision(self) -> str:
        return self.fabric.strategy.precision.precision

    @property
    def training(self) -> bool:
        return not self.validating

    @property
    def max_epochs(self) -> int:
        """Local epochs; -1 if steps are counted."""
        return self.plan.epochs if self.plan.steps is None else -1

    @property
    def max_steps(self) -> int:
        """Local steps; -1 if epochs are counted."""
        return -1 if self.plan.steps is None else self.plan.steps

    @property
    def num_training_batches(self) -> int:
        """Batches of a local epoch."""
        return self.plan.num_batches(self._available)

    @property
    def estimated_stepping_batches(self) -> int:
        """Local steps, such as for a schedule that ends with them."""
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
        """Means of what was logged so far, or in this epoch if a schedule waits for it, and in the last validation."""
        if isinstance(self.logs, EpochMeans):
            epoch = self.logs.epoch
            known = self.logs.whole.result() | epoch.result() | epoch.by_step_and_epoch()
        else:
            known = self.logs.result() | self.logs.by_step_and_epoch()
        known |= self.validation_logs | self.validation_forks
        return {name: torch.tensor(value) for name, value in known.items()}

    logged_metrics = callback_metrics

    @property
    def datamodule(self) -> Any:
        return self.client.data


class LocalStrategy:
    """What Lightning's methods need of a Trainer's strategy and precision."""

    def __init__(self, trainer: LocalTrainer) -> None:
        # In a circle, networks of clients and their gradients would stay until Python's collector comes by.
        self.trainer: LocalTrainer = weakref.proxy(trainer)

    @cached_property
    def _lightning_optimizers(self) -> list["LocalOptimizer"]:
        """Read by `LightningModule.optimizers`; made on demand, since each is a class of its own."""
        return [LocalOptimizer(optimizer, self.trainer) for optimizer in self.trainer.optimizers]

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
        raise UsageError("`self.all_gather` has no meaning in local training: every process has a client of its own.")


class LocalOptimizer(LightningOptimizer):
    """An optimiser whose step has Lightning's hooks."""

    def __init__(self, optimizer: Optimizer, trainer: LocalTrainer) -> None:
        super().__init__(optimizer)
        self._trainer = trainer

    def step(self, closure: Callable[[], Any] | None = None, **options: Any) -> Any:
        """Compute gradients by the closure, if there is one, call hooks, clip, then update."""
        trainer = self._trainer

        def compute() -> Any:
            loss = None if closure is None else closure()
            if has_scaler(trainer.fabric):
                trainer.fabric.strategy.precision.unscale_gradients(self.optimizer)
            learner = trainer.lightning_module
            learner.on_before_optimizer_step(self.optimizer)
            if learner.automatic_optimization:
                learner.configure_gradient_clipping(
                    self.optimizer, gradient_clip_val=trainer.gradient_clip_val, gradient_clip_algorithm=None
                )
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


@contextmanager
def attached(parts: Iterable[LightningModule], trainer: LocalTrainer) -> Iterator[None]:
    """Within, a method and its parts find the local training as `self.trainer`."""
    before = [(vars(part), part._trainer, part._fabric) for part in parts]
    for own, _, _ in before:  # the public setters walk all children
        own["_trainer"] = trainer
        own["_fabric"] = None  # or Lightning would ask Fabric, which knows no hooks
    try:
        yield
    finally:
        for own, old_trainer, old_fabric in before:
            own["_trainer"] = old_trainer
            own["_fabric"] = old_fabric
