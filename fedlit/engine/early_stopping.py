"""Early stopping: the best state of a visit, by the client's own validation samples."""

from lightning.fabric import Fabric

from fedlit.aggregation import State
from fedlit.data.client import Client
from fedlit.engine.scores import outputs
from fedlit.engine.validation import Validation
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
        self.value = float("inf")
        self.checks = 0
        self.state: State = {}
        self.logs: dict[str, float] = {}

    def exhausted(self, is_first: bool = False) -> bool:
        """Check once more; whether patience has run out."""
        logs = {} if self.validation is None else self.validation(is_first)
        z, y = outputs(self.fabric, self.learner, self.client.val_batches())
        value = self.learner.validation_loss(z, y) if self.rule.metric == "loss" else -(z.argmax(dim=1) == y).sum()
        self.checks += 1
        if value < self.value:
            self.value = float(value)
            self.checks = 0
            self.logs = logs
            self.state = {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}
        return self.checks >= self.rule.patience

    def restore(self) -> None:
        copy_into(self.learner.state_dict(keep_vars=True), self.state)
