"""FedBN. Li et al., 2021. https://arxiv.org/abs/2102.07623

As FedAvg, but BatchNorm layers stay with their client, weights and statistics alike:

    w_{t+1}^(l) = sum_k a_k w_k^(l)   of a layer l that is no BatchNorm;   w_k^(l) stays of one that is

The authors' code weighs all clients alike and knows such layers by `bn` in their names; here they are
known by their kind. `trainer.batch_norm: local` does the same for any method.

Invariants: a network without BatchNorm is FedAvg's; FedAvg under `trainer.batch_norm: local` is this.
"""

from lightning.pytorch.cli import OptimizerCallable

from fedlit.methods.base import Card, FederatedModule, Weighting
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, build
from fedlit.methods.parts import batch_norm_names
from fedlit.tasks import Task


class FedBN(FederatedModule):
    """One network for all but for its BatchNorm layers, which every client has for itself.

    Args:
        network: Builds the network.
        optimizer: Builds a client's optimiser from the parameters.
        weighting: A client counts by its `examples`, or all count the same (`uniform`, as in the
            authors' code).
        client_optimizers: Another optimiser for some clients: a list with one for each, or a
            mapping from client id.
        task: What outputs are for, of fedlit.tasks; classification by default.
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
        super().__init__(optimizer, client_optimizers, task)
        self.network = build(network, "model.network")
        self.own_names = batch_norm_names(self)
        self.weighting = weighting

    def is_shared(self, name: str) -> bool:
        return super().is_shared(name) and name not in self.own_names
