"""Fine-tuned FedAvg: federate as FedAvg, then every client trains its copy of the global model on all of its own data.

Invariants: with no epochs of fine-tuning every personal model is the global one; the global model is FedAvg's.
"""

import warnings

from lightning.pytorch.cli import OptimizerCallable

from fedlit.bounds import check_count
from fedlit.data.federated import FederatedData
from fedlit.methods.base import Card, Weighting, metrics_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.stage import EarlyStopping, Stage
from fedlit.notices import Notice
from fedlit.tasks import Task


class FineTuned(FedAvg):
    """FedAvg, then fine-tuning on each client, which keeps the result.

    Args:
        finetune_epochs: Epochs of fine-tuning, at most; 0 leaves every client with the global model.
        stop_on: Stop fine-tuning early on the client's own validation samples, by `loss` or a metric of the task, such
            as `acc`, and keep the best state.
        monitor: The name of `stop_on` in 0.1, for one release more.
    """

    card = Card(
        travels="the network",
        stays="a fine-tuned copy",
        stages=("federate", "finetune"),
        recipes=("finetuned_fashion.yaml", "finetuned_cifar10.yaml"),
        use="The first to try where clients want models of their own, and the control of every method that is "
        "more than FedAvg and a few epochs on the client.",
        invariant="the global model is FedAvg's; 0 epochs leave it to every client",
    )

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        finetune_epochs: int = 5,
        stop_on: str | None = None,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        monitor: str | None = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.finetune_epochs = check_count("model.finetune_epochs", finetune_epochs, least=0)
        self.stop_on = stop_on or monitor
        if monitor is not None and stop_on is not None:
            raise ValueError("`model.monitor` of FineTuned is now `model.stop_on`; give one of them.")
        if monitor is not None:
            warnings.warn("`model.monitor` of FineTuned is now `model.stop_on`.", Notice, stacklevel=2)

    def check(self, data: FederatedData) -> None:
        super().check(data)
        watched = ["loss", *metrics_of(self)]
        if self.stop_on is not None and self.stop_on not in watched:
            raise ValueError(f"`model.stop_on` must be one of {', '.join(watched)}, got {self.stop_on!r}.")

    def configure_stages(self) -> list[Stage]:
        early_stopping = None if self.stop_on is None else EarlyStopping(self.stop_on)
        finetune = Stage(
            "finetune",
            rounds=1,
            epochs=self.finetune_epochs,
            samples="all",
            upload="none",
            early_stopping=early_stopping,
        )
        return [Stage("federate"), finetune]
