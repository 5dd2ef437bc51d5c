"""Lightning's validation in a visit: a pass over the client's own samples, for whoever has a hook of its own there."""

import torch
from lightning.fabric import Fabric

from fedlit.data.client import Client, Server
from fedlit.engine.module.means import Means
from fedlit.engine.module.modes import Modes, modes_of, restore
from fedlit.engine.module.precision import autocast, converted
from fedlit.engine.visits.lightning_hooks import VALIDATION_HOOKS, overridden
from fedlit.engine.visits.step_contract import takes_batch_idx
from fedlit.engine.visits.visit_trainer import VisitTrainer
from fedlit.methods.base import FederatedModule


def validates(learner: FederatedModule, client: Client, trainer: VisitTrainer) -> bool:
    """Whether a method has a hook of its own there, or a schedule that waits; the server has no such samples."""
    is_asked = any(config.reduce_on_plateau for config in trainer.lr_scheduler_configs)
    if isinstance(client, Server) or not (is_asked or overridden(learner, VALIDATION_HOOKS)):
        return False
    return client.val_batches().num_samples > 0


class Validation:
    """Validations of a visit.

    Args:
        fabric: Device and precision.
        learner: What is trained.
        client: Whose samples.
        trainer: Of the visit.
    """

    def __init__(self, fabric: Fabric, learner: FederatedModule, client: Client, trainer: VisitTrainer) -> None:
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
        if overridden(self.learner, frozenset({"on_validation_model_train"})):
            self.learner.on_validation_model_train()
        else:
            restore(modes)
