"""Early stopping: the best state of a visit, by the client's own validation samples."""

from lightning.fabric import Fabric

from fedlit.data.client import Client
from fedlit.engine.scores import outputs
from fedlit.methods.base import FederatedModule, copy_into
from fedlit.methods.stage import EarlyStopping


class Best:
    """Early stopping on the client's own validation data; the best state is a copy, never the live tensors."""

    def __init__(self, rule: EarlyStopping, fabric: Fabric, learner: FederatedModule, client: Client) -> None:
        self.rule, self.fabric, self.learner, self.client = rule, fabric, learner, client
        self.value, self.checks, self.state = float("inf"), 0, {}

    def exhausted(self) -> bool:
        """Check once more; whether patience has run out."""
        z, y = outputs(self.fabric, self.learner, self.client.val_batches())
        value = self.learner.validation_loss(z, y) if self.rule.metric == "loss" else -(z.argmax(dim=1) == y).sum()
        self.checks += 1
        if value < self.value:
            self.value, self.checks = float(value), 0
            self.state = {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}
        self.learner.train()
        return self.checks >= self.rule.patience

    def restore(self) -> None:
        copy_into(self.learner.state_dict(keep_vars=True), self.state)
