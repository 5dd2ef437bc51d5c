"""FedBN. Li et al., 2021. https://arxiv.org/abs/2102.07623

As FedAvg, but BatchNorm layers stay with their client, weights and statistics alike:

    w_{t+1}^(l) = sum_k a_k w_k^(l)   if layer l is no BatchNorm;   else w_k^(l) stays

The authors' code weighs all clients alike and finds such layers by `bn` in their names; here they are found by their
class. `trainer.batch_norm: local` does the same for any method.

Invariants: a network without BatchNorm is FedAvg's; FedAvg under `trainer.batch_norm: local` is this.
"""

from lightning.pytorch.cli import OptimizerCallable

from fedlit.heads import batch_norm_names
from fedlit.methods.base import Card, Weighting
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedavg import FedAvg
from fedlit.tasks import Task


class FedBN(FedAvg):
    """One network for all, except for its BatchNorm layers, which stay with each client.

    Args:
        weighting: A client counts by its `examples`, or all count the same (`uniform`, as in the authors' code).
    """

    card = Card(
        paper="Li et al., 2021",
        link="https://arxiv.org/abs/2102.07623",
        travels="the network without BatchNorm",
        stays="BatchNorm layers",
        recipes=("fedbn_fashion.yaml", "fedbn_cifar10.yaml"),
        use="Clients see the same classes in different light (scanners, cameras, styles) and the network has "
        "BatchNorm; without such layers it is FedAvg.",
        invariant="no BatchNorm in the network: FedAvg",
    )

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.own_names = batch_norm_names(self)

    def is_shared(self, name: str) -> bool:
        return super().is_shared(name) and name not in self.own_names
