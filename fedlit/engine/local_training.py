"""Local training of one client: the epochs, their validation, and what is uploaded and kept."""

from collections.abc import Collection, Mapping
from dataclasses import replace
from itertools import islice
from typing import NamedTuple

import torch
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from lightning.pytorch.utilities.model_helpers import is_overridden
from torch import nn
from torch.optim import Optimizer
from torchmetrics import Metric

from fedlit.aggregation import State, Upload
from fedlit.data.client import Client, Server
from fedlit.data.loaders import AnyBatches
from fedlit.engine.lightning_hooks import LocalTrainer, attached, takes_batch_idx
from fedlit.engine.live_module import Modes, ModuleSnapshot, modes_of, restore
from fedlit.engine.logged_values import EpochMeans, Means, logging_to, refusing_logs
from fedlit.engine.metrics import LOSS, MeanLoss, MetricSet, each_output, evaluate, outputs
from fedlit.engine.optimisation import (
    HookedStep,
    PlainStep,
    optimizer_state,
    optimizers_of,
    parameter_names,
    wants_hooks,
)
from fedlit.engine.plan import SCALER, ClientState, Interrupted, LocalResult, OptimizerState, Plan
from fedlit.engine.precision import Converted, Scaler, autocast, converted, renew_scaler
from fedlit.inputs import batch_size
from fedlit.methods.base import FederatedModule, copy_into
from fedlit.methods.hooks import VALIDATION_HOOKS, overrides
from fedlit.methods.stage import EarlyStopping, Stage
from fedlit.records.plain_values import is_plain
from fedlit.rng import derive, generator, seed_everything


def validates(learner: FederatedModule, client: Client, trainer: LocalTrainer) -> bool:
    """Whether a method has a hook of its own there, or a schedule that waits; the server has no such samples."""
    is_asked = any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)
    if isinstance(client, Server) or not (is_asked or overrides(learner, VALIDATION_HOOKS)):
        return False
    return client.val_batches().num_samples > 0


class Validation:
    """Validation within local training.

    Args:
        fabric: Device and precision.
        learner: What is trained.
        client: Whose samples.
        trainer: Of the local training.
    """

    def __init__(self, fabric: Fabric, learner: FederatedModule, client: Client, trainer: LocalTrainer) -> None:
        self.fabric = fabric
        self.learner = learner
        self.client = client
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
            restore(modes)


class BestState:
    """Early stopping on the client's own validation data; the best state is a copy, never the live tensors.

    Args:
        rule: What is watched, and how long.
        fabric: Device and precision.
        learner: What is trained.
        client: Whose samples.
        validation: Of a method that has hooks of its own there; called with every check.
    """

    def __init__(
        self,
        rule: EarlyStopping,
        fabric: Fabric,
        learner: FederatedModule,
        client: Client,
        validation: Validation | None = None,
    ) -> None:
        self.rule = rule
        self.fabric = fabric
        self.learner = learner
        self.client = client
        self.validation = validation
        self.measures = MetricSet(learner, {})
        self.value = float("inf")
        self.checks = 0
        self.state: State = {}
        self.logs: dict[str, float] = {}

    def exhausted(self, is_first: bool = False) -> bool:
        """Check once more; whether patience has run out."""
        logs = {} if self.validation is None else self.validation(is_first)
        value = self._to_fall()
        self.checks += 1
        if value < self.value:
            self.value = value
            self.checks = 0
            self.logs = logs
            self.state = {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}
        return self.checks >= self.rule.patience

    def _to_fall(self) -> float:
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
        if self.scaler is not None:
            found[SCALER] = self.scaler.kept()
        return found


class ModuleParts:
    """Of a method's structure what local training asks for; the same for all clients that share it.

    Args:
        module: The method.
        stage: That is trained.
        shared: Names of what travels both ways.

    Attributes:
        uploaded: Names of what a client uploads in a stage that aggregates.
        staying: Names of what stays with a client: what the stage trains that neither travels nor is the server's own.
    """

    def __init__(self, module: FederatedModule, stage: Stage, shared: Collection[str] = ()) -> None:
        learner = stage.module or module
        found = list(module.modules()) if learner is module else [*module.modules(), *learner.modules()]
        self.lightning = [part for part in dict.fromkeys(found) if isinstance(part, LightningModule)]
        self.metrics = [part for part in found if isinstance(part, Metric)]
        self.federated = [module] if learner is module else [module, learner]
        self.module = module
        self.tensors: State = module.state_dict(keep_vars=True)
        self.structure = structure_of(self.tensors)
        self.uploaded = [*shared, *(name for name in self.tensors if name.startswith(module.upload_only))]
        self.staying = self._staying(stage, shared)
        self._has_own_weight = is_overridden("client_weight", module, FederatedModule)
        self.before = ModuleSnapshot(module)

    def weight_of(self, client: Client) -> float:
        """How much a client's upload counts."""
        if not self._has_own_weight:
            return float(self.module.client_weight(client))
        with refusing_logs(self.module, "client_weight"):
            return float(self.module.client_weight(client))

    def live_tensors(self) -> State:
        """The tensors of the method after local training, which must have left their structure as it was."""
        if self.before.has_same_structure():
            return self.tensors
        tensors = self.module.state_dict(keep_vars=True)  # a buffer that was set anew, for one
        if structure_of(tensors) != self.structure:
            raise ValueError("local training changed names, shapes, dtypes or devices of the state.")
        return tensors

    def _staying(self, stage: Stage, shared: Collection[str]) -> list[str]:
        names = set(self.tensors)
        if stage.module is not None:
            trained = {id(tensor) for tensor in stage.module.state_dict(keep_vars=True).values()}
            names = {name for name, tensor in self.tensors.items() if id(tensor) in trained}
        if stage.upload == "aggregate":
            names.difference_update(shared)
        elsewhere = self.module.server_only + self.module.download_only + self.module.upload_only
        return [name for name in self.tensors if name in names and not name.startswith(elsewhere)]


def structure_of(state: State) -> dict[str, tuple]:
    """What local training must leave as it is: names, shapes, dtypes, devices and layouts."""
    return {name: (tensor.shape, tensor.dtype, tensor.device, tensor.layout) for name, tensor in state.items()}


def train(
    fabric: Fabric,
    module: FederatedModule,
    client: Client,
    plan: Plan,
    memory: ClientState,
    uploads: Uploads | None = None,
    parts: ModuleParts | None = None,
) -> TrainingResult:
    """Run the local epochs of a stage on the live module; the caller preserves the global random states.

    Args:
        fabric: Device and precision.
        module: With the state that training starts from.
        client: Whose samples; also the server, which has those of the public pool.
        plan: How long, how fast.
        memory: Of the optimiser, from the client's last training in this stage.
        uploads: What the server has collected, if it is the server that trains.
        parts: Of the method, where they are known.
    """
    stage = plan.stage
    learner = stage.module or module
    parts = parts or ModuleParts(module, stage)
    if client.samples != stage.samples:
        client = replace(client, samples=stage.samples)
    means = Means()
    trainer = LocalTrainer(fabric, learner, client, plan, means)
    module.stage = stage
    for part in parts.federated:
        part.client = client
    for metric in parts.metrics:  # one of one client knows nothing of the client before
        metric.reset()
    # Results depend on the names of random streams: that of local training stays "visit".
    seed_everything(derive(plan.seed, "visit", stage.name, client.round, client.id))
    with attached(parts.lightning, trainer), logging_to(means, parts.federated):
        _start(fabric, module, client, uploads)
        kept = memory.optimizer.get(stage.name, {})
        names = parameter_names(module) if kept else {}
        scaler = renew_scaler(fabric, kept.get(SCALER))
        trainer.take(*optimizers_of(learner, plan, names, kept))
        learner.on_fit_start()
        epochs = LocalEpochs(fabric, learner, client, plan, trainer)
        epochs.run()
        learner.on_fit_end()
        learner.teardown("fit")
        if uploads is None:
            module.on_client_end(client)
        return TrainingResult(trainer.optimizers, means.result(), trainer.validation_logs, scaler, epochs.skipped)


def _start(fabric: Fabric, module: FederatedModule, client: Client, uploads: Uploads | None) -> None:
    with autocast(fabric)():  # what it computes of frozen networks must round as training does
        if isinstance(client, Server) and uploads is not None:
            module.on_server_start(client, uploads)
        else:
            module.on_client_start(client)


class LocalEpochs:
    """The epochs of a local training.

    Args:
        fabric: Device and precision.
        learner: What is trained.
        client: Whose samples.
        plan: How long.
        trainer: The local training, as Lightning's methods see it; it has the optimisers.
    """

    def __init__(
        self, fabric: Fabric, learner: FederatedModule, client: Client, plan: Plan, trainer: LocalTrainer
    ) -> None:
        self.fabric = fabric
        self.learner = learner
        self.plan = plan
        self.trainer = trainer
        self.batches = self._batches(client)
        available = len(self.batches)
        self.num_batches = plan.num_batches(available)
        self.num_steps = plan.num_steps(available)
        self.validation: Validation | None = None
        if validates(learner, client, trainer):
            self.validation = Validation(fabric, learner, client, trainer)
        self.best: BestState | None = None
        rule = plan.stage.early_stopping
        if rule is not None and client.val_batches().num_samples:  # else there is nothing to watch
            self.best = BestState(rule, fabric, learner, client, self.validation)
        self.steps = 0
        self.step: PlainStep | HookedStep | None = None  # made before the first one, after hooks that may add others

    def _batches(self, client: Client) -> AnyBatches | Converted:
        stage = self.plan.stage
        order = None
        if self.plan.is_shuffled:
            order = generator(self.plan.seed, "batches", stage.name, client.round, client.id)
        batches = client.train_batches(order, stage.samples, stage.public).to(self.learner.device)
        batches.indexed = self.learner.wants_index
        return converted(self.fabric, batches)

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
        self._run_epochs(0 if is_over else limit)
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

    def _begin_steps(self) -> PlainStep | HookedStep:
        """How steps of an epoch are taken."""
        if self.step is None:
            is_hooked = wants_hooks(self.learner, self.trainer)
            self.step = HookedStep(self.trainer, self.num_batches) if is_hooked else PlainStep(self.trainer)
        self.step.begin_epoch()
        return self.step

    def _epoch(self) -> bool:
        """All batches, or as many as there are steps left; whether no hook has cut the epoch short."""
        plan = self.plan
        trainer = self.trainer
        take_step = self._begin_steps()
        for batch_idx, batch in enumerate(islice(self.batches, self.num_batches)):
            if plan.should_stop():
                raise Interrupted
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
    shared: Collection[str],
    memory: ClientState,
    constant: Collection[str] = (),
    parts: ModuleParts | None = None,
) -> LocalResult:
    """Train the client whose state is loaded; its upload holds what goes up (or is collected) and nothing else.

    What is constant is neither uploaded nor kept. An upload to be aggregated holds the live tensors: who keeps it
    longer than until the next state is loaded copies it.
    """
    stage = plan.stage
    parts = parts or ModuleParts(module, stage, shared)
    trained = train(fabric, module, client, plan, memory, parts=parts)
    live = parts.live_tensors()
    own = dict(memory.state)
    for name in parts.staying:
        if name not in constant:
            own[name] = live[name].detach().clone()
    upload = None
    if stage.upload == "aggregate":
        sent = {name: live[name].detach() for name in parts.uploaded}
        upload = Upload(client.id, sent, parts.weight_of(client))
    elif stage.upload == "collect":
        upload = Upload(client.id, _collected(module, live, memory, constant))
        own = {name: tensor for name, tensor in own.items() if name not in upload.state}  # one copy is enough
    momenta: OptimizerState = {}
    if plan.optimizer_state != "reset":
        kept = parts.staying if plan.optimizer_state == "personal" else [name for name in live if name not in constant]
        momenta = trained.optimizer_state(module, kept)
        if not is_plain(momenta):
            raise ValueError("its optimiser keeps what is neither tensor, number nor string.")
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


def _collected(module: FederatedModule, live: State, memory: ClientState, constant: Collection[str]) -> State:
    """What the server is to keep; the very tensors of an earlier stage where nothing has changed since."""
    upload: State = {}
    for name, tensor in live.items():
        if name.startswith(module.collected) and name not in constant:
            before = memory.state.get(name)
            is_same = before is not None and torch.equal(before, tensor)
            upload[name] = before if is_same else tensor.detach().clone()  # type: ignore[assignment]
    return upload
