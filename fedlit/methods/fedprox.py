"""FedProx. Li et al., 2020. https://arxiv.org/abs/1812.06127

As FedAvg, but a client is held near the global model w_t that its round began with:

    L = CE(p, y) + mu/2 * sum ||w - w_t||^2        over the trained parameters

Invariant: mu = 0 is FedAvg.
"""

from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer

from fedlit.bounds import check_number
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.losses import add_to_gradients, proximal_gradient
from fedlit.methods.base import Card, FederatedModule, Weighting
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, build, check_no_line_search
from fedlit.methods.states import frozen, trained
from fedlit.tasks import Task


class FedProx(FederatedModule):
    """One network for all; a client pays for drifting away from it.

    Args:
        network: Builds the network.
        optimizer: Builds a client's optimiser from the parameters.
        mu: Strength of the pull towards the global model; 0 is FedAvg.
        weighting: A client counts by its `examples`, or all count the same (`uniform`).
        client_optimizers: Another optimiser for some clients: a list with one for each, or a
            mapping from client id.
        task: What outputs are for, of fedlit.tasks; classification by default.
    """

    card = Card(
        paper="Li et al., 2020",
        link="https://arxiv.org/abs/1812.06127",
        travels="the network",
        recipes=("fedprox_fashion.yaml", "fedprox_cifar10.yaml"),
        use="One model for all, where long local training on data that differ pulls clients apart; mu must be tuned, "
        "and a large one slows everybody down.",
        invariant="mu = 0 is FedAvg",
    )

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        mu: float = 0.01,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(optimizer, client_optimizers, task)
        check_number("model.mu", mu, least=0)
        self.network = build(network, "model.network")
        self.mu = mu
        self.weighting = weighting
        self.anchors: list[Tensor] = []

    def check(self, data: FederatedData) -> None:
        super().check(data)
        check_no_line_search(self.optimizer, self.client_optimizers)

    def on_client_start(self, client: Client | None) -> None:
        self.w = trained(self.network)
        self.anchors = frozen(self.w)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        add_to_gradients(self.w, proximal_gradient(self.w, self.anchors, self.mu))
