"""Early stopping: the best state of a visit, by the client's own validation samples."""

import torch
from lightning.fabric import Fabric

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.engine.scoring.measures import LOSS, Measures
from fedlit.engine.scoring.outputs import each_output, outputs
from fedlit.engine.scoring.scores import evaluate
from fedlit.engine.scoring.tally import MeanLoss
from fedlit.engine.visits.validation import Validation
from fedlit.inputs import batch_size
from fedlit.methods.base import FederatedModule, copy_into
from fedlit.methods.stage import EarlyStopping


class Best:
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
        self.measures = Measures(learner, {})
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
