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
from fedlit.methods.base import Card, Weighting
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, check_no_line_search
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.states import frozen, trained
from fedlit.tasks import Task


class FedProx(FedAvg):
    """One network for all; a client pays for drifting away from it.

    Args:
        mu: Strength of the pull towards the global model; 0 is FedAvg.
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
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.mu = check_number("model.mu", mu, least=0)

    def check(self, data: FederatedData) -> None:
        super().check(data)
        check_no_line_search(self.optimizer, self.client_optimizers)

    def on_client_start(self, client: Client | None) -> None:
        self.w = trained(self.network)
        self.w_t = frozen(self.w)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        if self.mu:
            add_to_gradients(self.w, self.gradient_of_term())

    def gradient_of_term(self) -> list[Tensor]:
        """The gradient of the loss without CE."""
        return proximal_gradient(self.w, self.w_t, self.mu)
