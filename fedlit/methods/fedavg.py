"""Federated averaging. McMahan et al., 2017. https://arxiv.org/abs/1602.05629

A client trains a copy of the global model on its own data; the server averages the copies:

    w_{t+1} = sum_k a_k w_k,    a_k = n_k / n  (examples)  or  1 / K  (uniform)

FedAvgM, FedAdam and FedYogi are FedAvg with a `trainer.server_optimizer`.

Invariants: one client that holds all data is a plain training loop; with clients of equal size both weightings agree.
"""

from lightning.pytorch.cli import OptimizerCallable

from fedlit.methods.base import Card, FederatedModule, Weighting
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, build
from fedlit.tasks import Task


class FedAvg(FederatedModule):
    """One network for all, averaged every round."""

    card = Card(
        paper="McMahan et al., 2017",
        link="https://arxiv.org/abs/1602.05629",
        travels="the network",
        recipes=(
            "fedavg_fashion.yaml",
            "fedavg_cifar10.yaml",
            "fedavg_mnist_shards.yaml",
            "fedavgm_fashion.yaml",
            "fedadam_fashion.yaml",
            "fedyogi_fashion.yaml",
            "fedadam_cifar10.yaml",
            "fedavg_topk_fashion.yaml",
            "regression_toy.yaml",
            "multilabel_toy.yaml",
            "language_toy.yaml",
            "segmentation_toy.yaml",
        ),
        use="The first to try, and what any other has to beat: one model for all, and clients that can all "
        "train the same network.",
        invariant="one client with all data is a plain loop",
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
        self.weighting = weighting
