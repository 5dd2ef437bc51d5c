"""Local training of one client: the epochs, their validation, and what is uploaded and kept."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.optim import Optimizer

from fedlit.aggregation import State, Upload
from fedlit.data.batches import Batches
from fedlit.data.client import Client, Server
from fedlit.engine.lightning_hooks import LocalTrainer, attached, takes_batch_idx
from fedlit.engine.local_training_setup import LocalTrainingSetup
from fedlit.engine.logged_values import EpochMeans, Means, logging_to
from fedlit.engine.metrics import LOSS, MeanLoss, MetricSet, each_output, evaluate, outputs
from fedlit.engine.optimisation import (
    HookedStep,
    PlainStep,
    optimizer_state,
    optimizers_of,
    parameter_names,
    wants_hooks,
)
from fedlit.engine.plan import SCALER, ClientState, LocalResult, OptimizerState, Plan
from fedlit.engine.precision import Converted, Scaler, autocast, converted, renew_scaler
from fedlit.inputs import batch_size
from fedlit.methods.base import FederatedModule
from fedlit.methods.hooks import overrides
from fedlit.methods.stage import EarlyStopping
from fedlit.methods.states import copy_into
from fedlit.modes import Modes, modes_of, restore_modes
from fedlit.records.plain_values import is_plain
from fedlit.rng import derive, generator, seed_everything


def validates(setup: LocalTrainingSetup, trainer: LocalTrainer) -> bool:
    """Whether a method has a hook of its own there, or a schedule that waits; the server has no such samples."""
    is_asked = setup.has_validation_hooks or any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)
    if not is_asked or isinstance(trainer.client, Server):
        return False
    return trainer.client.val_batches().num_samples > 0


class Validation:
    """Validation within local training.

    Args:
        trainer: Of the local training.
    """

    def __init__(self, trainer: LocalTrainer) -> None:
        self.fabric = trainer.fabric
        self.learner = trainer.lightning_module
        self.client = trainer.client
        self.trainer = trainer

    @torch.no_grad()
    def __call__(self, is_first: bool = False) -> dict[str, float]:
        """Every hook in Lightning's order; what was logged.

        Args:
            is_first: Before the first step, as Lightning's sanity check is.
        """
        learner = self.learner
        means = Means()
        sink, learner._log_sink = learner._log_sink, means
        modes = modes_of(learner)
        self.trainer.validating = True
        self.trainer.sanity_checking = is_first
        if not is_first:
            learner.on_validation_model_zero_grad()
        learner.on_validation_model_eval()
        learner.on_validation_start()
        learner.on_validation_epoch_start()
        self._batches()
        learner.on_validation_epoch_end()
        logs = means.result()
        self.trainer.validation_logs = logs
        self.trainer.validation_forks = means.by_step_and_epoch()
        learner.on_validation_end()
        self._train_again(modes)
        self.trainer.validating = self.trainer.sanity_checking = False
        learner._log_sink = sink
        for metric in means.metrics.values():
            metric.reset()
        return logs

    def _batches(self) -> None:
        learner = self.learner
        context = autocast(self.fabric)
        wants_number = takes_batch_idx(learner.validation_step)
        batches = converted(self.fabric, self.client.val_batches().to(learner.device))
        for number, batch in enumerate(batches):
            learner.on_validation_batch_start(batch, number)
            arguments = (batch, number) if wants_number else (batch,)
            with context():
                outputs = learner.validation_step(*arguments)  # type: ignore[arg-type, func-returns-value]
            learner.on_validation_batch_end(outputs, batch, number)

    def _train_again(self, modes: Modes) -> None:
        if overrides(self.learner, frozenset({"on_validation_model_train"})):
            self.learner.on_validation_model_train()
        else:
            restore_modes(modes)


class BestState:
    """Early stopping on the client's own validation data; the best state is a copy, never the live tensors.

    Args:
        rule: What is watched, and how long.
        trainer: Of the local training.
        validation: Of a method that has hooks of its own there; called with every check.
    """

    def __init__(self, rule: EarlyStopping, trainer: LocalTrainer, validation: Validation | None = None) -> None:
        self.rule = rule
        self.fabric = trainer.fabric
        self.learner = trainer.lightning_module
        self.client = trainer.client
        self.validation = validation
        self.measures = MetricSet(self.learner, {})
        self.value = float("inf")
        self.checks = 0
        self.state: State = {}
        self.logs: dict[str, float] = {}

    def exhausted(self, is_first: bool = False) -> bool:
        """Check once more; whether patience has run out."""
        logs = {} if self.validation is None else self.validation(is_first)
        value = self._value_to_minimise()
        self.checks += 1
        if value < self.value:
            self.value = value
            self.checks = 0
            self.logs = logs
            self.state = {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}
        return self.checks >= self.rule.patience

    def _value_to_minimise(self) -> float:
        """What is watched; of what is to rise, its negative."""
        if self.rule.metric == LOSS:
            return self._loss()
        scores = evaluate(self.fabric, self.learner, self.client.val_batches(), self.measures)
        if self.rule.metric not in scores:
            raise ValueError(f"early stopping watches {self.rule.metric!r}, which cannot be measured here.")
        value = scores[self.rule.metric]
        return -value if self.measures.rises(self.rule.metric) else value

    @torch.no_grad()
    def _loss(self) -> float:
        batches = self.client.val_batches()
        if self.measures.are_of_classes:
            return float(self.learner.validation_loss(*outputs(self.fabric, self.learner, batches)))
        loss = MeanLoss()
        for output, target in each_output(self.fabric, self.learner, batches):
            loss.add(self.learner.validation_loss(output, target), batch_size(output, target))
        return loss.mean

    def restore(self) -> None:
        copy_into(self.learner.state_dict(keep_vars=True), self.state)


Uploads = Mapping[int, State]  # what the server has collected, by client id


class TrainingResult(NamedTuple):
    """What training leaves beside the state: its optimisers, means of what it logged, and of what validation did.

    `skipped` is the number of steps if none of them had a loss. Of 16-mixed also the gradient scaler.
    """

    optimizers: list[Optimizer]
    logs: dict[str, float]
    validation_logs: dict[str, float]
    scaler: Scaler | None
    skipped: int = 0

    @property
    def overflowed(self) -> int:
        """Steps, if all were skipped because gradients overflowed."""
        return 0 if self.scaler is None else self.scaler.num_all_skipped()

    def optimizer_state(self, module: nn.Module, kept: Collection[str]) -> OptimizerState:
        """What is kept of the optimisers of the parameters with these names."""
        found = optimizer_state(module, self.optimizers, kept)
        if found and not is_plain(found):
            raise ValueError("its optimiser keeps what is neither tensor, number nor string.")
        if self.scaler is not None:
            found[SCALER] = self.scaler.kept()
        return found


def train(
    fabric: Fabric,
    module: FederatedModule,
    client: Client,
    plan: Plan,
    client_state: ClientState,
    uploads: Uploads | None = None,
    setup: LocalTrainingSetup | None = None,
) -> TrainingResult:
    """Run the local epochs of a stage on the live module; the caller preserves the global random states.

    Args:
        fabric: Device and precision.
        module: With the state that training starts from.
        client: Whose samples; also the server, which has those of the public pool.
        plan: How long, how fast.
        client_state: Of the optimiser, from the client's last training in this stage.
        uploads: What the server has collected, if it is the server that trains.
        setup: Of the method and the stage, where it is known.
    """
    stage = plan.stage
    setup = setup or LocalTrainingSetup(fabric, module, stage)
    learner = setup.learner
    if client.samples != stage.samples:
        client = replace(client, samples=stage.samples)
    means = Means()
    trainer = LocalTrainer(fabric, learner, client, plan, means)
    module.stage = stage
    for metric in setup.metrics:  # one of one client knows nothing of the client before
        metric.reset()
    # Results depend on the names of random streams: that of local training stays "visit".
    seed_everything(derive(plan.seed, "visit", stage.name, client.round, client.id))
    for part in setup.federated:
        part.client = client
    with attached(setup.lightning, trainer), logging_to(means, setup.federated):
        _start(setup, client, uploads)
        kept = client_state.optimizer.get(stage.name, {})
        names = parameter_names(module) if kept else {}
        scaler = renew_scaler(fabric, kept.get(SCALER)) if setup.is_scaled else None
        trainer.optimizers, trainer.lr_scheduler_configs = optimizers_of(setup, plan, names, kept)
        learner.on_fit_start()
        epochs = LocalEpochs(setup, trainer)
        epochs.run()
        learner.on_fit_end()
        learner.teardown("fit")
        if uploads is None:
            module.on_client_end(client)
        return TrainingResult(trainer.optimizers, means.result(), trainer.validation_logs, scaler, epochs.skipped)


def _start(setup: LocalTrainingSetup, client: Client, uploads: Uploads | None) -> None:
    with setup.autocast():  # what is computed here must round as training does
        if isinstance(client, Server) and uploads is not None:
            setup.module.on_server_start(client, uploads)
        else:
            setup.module.on_client_start(client)


class LocalEpochs:
    """The epochs of a local training.

    Args:
        setup: Of the method.
        trainer: The local training, as Lightning's methods see it; it has the client, the plan and the optimisers.
    """

    def __init__(self, setup: LocalTrainingSetup, trainer: LocalTrainer) -> None:
        self.setup = setup
        self.learner = setup.learner
        self.plan = trainer.plan
        self.trainer = trainer
        self.batches = self._batches()
        available = len(self.batches)
        self.num_batches = self.plan.num_batches(available)
        self.num_steps = self.plan.num_steps(available)
        self.validation = Validation(trainer) if validates(setup, trainer) else None
        self.best: BestState | None = None
        rule = self.plan.stage.early_stopping
        if rule is not None and trainer.client.val_batches().num_samples:  # else there is nothing to watch
            self.best = BestState(rule, trainer, self.validation)
        self.steps = 0
        self.step: PlainStep | HookedStep | None = None  # made before the first one, after hooks that may add others

    def _batches(self) -> Batches | Converted:
        stage = self.plan.stage
        client = self.trainer.client
        order = None
        if self.plan.is_shuffled:
            order = generator(self.plan.seed, "batches", stage.name, client.round, client.id)
        batches = client.train_batches(order, stage.samples, stage.public).to(self.learner.device)
        batches.indexed = self.learner.wants_index
        return converted(self.trainer.fabric, batches)

    def run(self) -> None:
        """Train until epochs or steps are done, patience runs out, or a hook says `self.trainer.should_stop`."""
        learner = self.learner
        limit = self.plan.epochs if self.plan.steps is None else self.plan.steps  # an epoch has at least one step
        if limit == 0:
            return
        is_over = False
        if self.best is not None and self.best.rule.is_due(0):
            is_over = self.best.exhausted(is_first=True)
        learner.on_train_start()
        if not is_over:
            self._run_epochs(limit)
        learner.on_train_end()
        if self.best is not None:
            self.best.restore()
            self.trainer.validation_logs = self.best.logs

    @property
    def skipped(self) -> int:
        """How many steps there were, if each was skipped by a `training_step` that returned None."""
        is_skipped = self.step is not None and self.step.had_none and not self.step.had_loss
        return self.steps if is_skipped else 0

    def _run_epochs(self, limit: int) -> None:
        for epoch in range(limit):
            self.trainer.current_epoch = epoch
            self._begin_logs()
            self.learner.on_train_epoch_start()
            is_whole = self._epoch()
            is_over = epoch + 1 == limit or self.steps == self.plan.steps or self.trainer.should_stop
            if is_whole or self.best is not None:
                is_over |= self._validate(epoch, is_over)
            self.learner.on_train_epoch_end()
            if self.step is not None:
                self.step.after_epoch()
            self.plan.after_epoch()
            self.trainer.current_epoch = epoch + 1
            if is_over:
                return

    def _epoch(self) -> bool:
        """All batches, or as many as there are steps left; whether no hook has cut the epoch short."""
        plan = self.plan
        trainer = self.trainer
        if self.step is None:
            if wants_hooks(self.setup, trainer):
                self.step = HookedStep(trainer, self.setup, self.num_batches)
            else:
                self.step = PlainStep(trainer, self.setup)
        take_step = self.step
        for batch_idx, batch in enumerate(islice(self.batches, self.num_batches)):
            plan.before_step(self.steps, self.num_steps)
            if not take_step(batch, batch_idx):
                return False
            self.steps += 1
            if self.steps == plan.steps or trainer.should_stop:
                break
        return True

    def _validate(self, epoch: int, is_last: bool) -> bool:
        """After an epoch; whether patience has run out."""
        if self.best is not None:
            is_due = is_last or self.best.rule.is_due(epoch + 1)
            return is_due and self.best.exhausted()
        if self.validation is not None:
            self.validation()
        return False

    def _begin_logs(self) -> None:
        """A schedule that waits for a value has that of the epoch."""
        if any(config.reduce_on_plateau for config in self.trainer.lr_scheduler_configs):
            logs = self.trainer.logs
            whole = logs.whole if isinstance(logs, EpochMeans) else logs
            self.trainer.logs = self.learner._log_sink = EpochMeans(whole)


def train_client(
    fabric: Fabric,
    module: FederatedModule,
    client: Client,
    plan: Plan,
    client_state: ClientState,
    setup: LocalTrainingSetup,
    constant: Collection[str] = (),
) -> LocalResult:
    """Train the client whose state is loaded; its upload holds what goes up (or is collected) and nothing else.

    What is constant is neither uploaded nor kept. An upload to be aggregated holds the live tensors: who keeps it
    longer than until the next state is loaded copies it.
    """
    stage = plan.stage
    trained = train(fabric, module, client, plan, client_state, setup=setup)
    live = setup.live_tensors()
    own = dict(client_state.state)
    for name in setup.personal_names:
        if name not in constant:
            own[name] = live[name].detach().clone()
    upload = None
    if stage.upload == "aggregate":
        sent = {name: live[name].detach() for name in setup.uploaded}
        upload = Upload(client.id, sent, setup.weight_of(client))
    elif stage.upload == "collect":
        upload = Upload(client.id, _collected(module, live, client_state, constant))
        own = {name: tensor for name, tensor in own.items() if name not in upload.state}  # one copy is enough
    momenta: OptimizerState = {}
    if plan.optimizer_state != "reset":
        kept = setup.personal_names
        if plan.optimizer_state == "keep":
            kept = [name for name in live if name not in constant]
        momenta = trained.optimizer_state(module, kept)
    for tensor in live.values():  # gradients end with the training
        tensor.grad = None
    return LocalResult(
        upload,
        ClientState(own, {stage.name: momenta} if momenta else {}),
        trained.logs,
        validation_logs=trained.validation_logs,
        skipped=trained.skipped,
        overflowed=trained.overflowed,
    )


def _collected(module: FederatedModule, live: State, client_state: ClientState, constant: Collection[str]) -> State:
    """What the server is to keep; the very tensors of an earlier stage where nothing has changed since."""
    upload: State = {}
    for name, tensor in live.items():
        if name.startswith(module.collected) and name not in constant:
            before = client_state.state.get(name)
            is_same = before is not None and torch.equal(before, tensor)
            upload[name] = before if is_same else tensor.detach().clone()  # type: ignore[assignment]
    return upload
