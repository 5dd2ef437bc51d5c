"""FedPer: federated learning with personalisation layers. Arivazhagan et al., 2019. https://arxiv.org/abs/1912.00818

A client's network is a body W_B that all share and a head W_P of its own. Both train together;
the server averages the bodies:

    W_B <- sum_k a_k W_B,k,    a_k = n_k / n

The head is the last linear layers; the paper's residual networks also keep their last blocks. The authors published no
code. The paper draws every client's head at random; here all start from one.

Invariant: a head of 0 layers is FedAvg.
"""

from lightning.pytorch.cli import OptimizerCallable

from fedlit.heads import head_names
from fedlit.methods.base import Card, Weighting
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedavg import FedAvg
from fedlit.tasks import Task


class FedPer(FedAvg):
    """A shared body and a personal head, trained together.

    Args:
        network: Builds the network, whose last linear layers are the head.
        optimizer: Builds a client's optimiser from the parameters of both.
        head_layers: Linear layers that stay with the client, the last of the network; 0 is FedAvg.
    """

    card = Card(
        paper="Arivazhagan et al., 2019",
        link="https://arxiv.org/abs/1912.00818",
        travels="the body",
        stays="a head",
        recipes=("fedper_fashion.yaml", "fedper_cifar10.yaml"),
        use="Clients agree on features but not on labels: each keeps its head, at no cost beyond FedAvg. "
        "There is no global model for somebody new.",
        invariant="a head of 0 layers is FedAvg",
    )

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        head_layers: int = 1,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.head_layers = head_layers
        self.own_names = head_names(self.network, head_layers)

    def is_shared(self, name: str) -> bool:
        return super().is_shared(name) and name.removeprefix("network.") not in self.own_names
