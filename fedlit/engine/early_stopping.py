"""Early stopping: the best state of a visit, by the client's own validation samples."""

from lightning.fabric import Fabric

from fedlit.data.client import Client
from fedlit.engine.scores import outputs
from fedlit.methods.base import FederatedModule, load
from fedlit.methods.stage import Stage


class Best:
    """Early stopping on the client's own validation data; the best state is a copy, never the live tensors."""

    def __init__(self, stage: Stage, fabric: Fabric, learner: FederatedModule, client: Client) -> None:
        self.stage, self.fabric, self.learner, self.client = stage, fabric, learner, client
        self.value, self.checks, self.state = float("inf"), 0, {}

    def exhausted(self) -> bool:
        """Check once more; whether patience has run out."""
        z, y = outputs(self.fabric, self.learner, self.client.val_batches())
        value = self.learner.validation_loss(z, y) if self.stage.monitor == "loss" else -(z.argmax(dim=1) == y).sum()
        self.checks += 1
        if value < self.value:
            self.value, self.checks = float(value), 0
            self.state = {name: tensor.clone() for name, tensor in self.learner.state_dict().items()}
        self.learner.train()
        return self.checks >= self.stage.patience

    def restore(self) -> None:
        load(self.learner.state_dict(keep_vars=True), self.state)
