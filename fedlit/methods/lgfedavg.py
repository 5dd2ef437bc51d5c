"""LG-FedAvg: think locally, act globally. Liang et al., 2020. https://arxiv.org/abs/2001.01523

The converse of FedPer: a client keeps its extractor l_m, of any architecture, and all share the head g, which is the
last linear layers:

    y = g(l_m(x));    theta_g <- sum_m a_m theta_g,m,    theta_l,m stays

Both train together. The authors' code starts from a network that FedAvg has trained (here that is a `network` that
loads its weights), weighs all clients alike, and tests each client's best network so far with an average of the best
heads; here it is the last one with the last mean.

Invariant: a head of all layers (the extractor has none) is FedAvg.
"""

from lightning.pytorch.cli import OptimizerCallable
from torch import nn

from fedlit.bounds import check_count
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.heads import Headed, check_head
from fedlit.methods.base import Card, Weighting
from fedlit.methods.factories import (
    ClientNetworks,
    ClientOptimizers,
    NetworkFactory,
    build,
    draws_initial_values,
    for_client,
    numbered,
)
from fedlit.methods.fedavg import FedAvg
from fedlit.rng import isolated
from fedlit.tasks import Task


class LGFedAvg(FedAvg):
    """A personal extractor and a shared head, trained together.

    Args:
        network: Builds the network, whose last linear layers are the head.
        optimizer: Builds a client's optimiser from the parameters of both.
        head_layers: Linear layers that travel, the last of the network.
        weighting: A client counts by its `examples`, or all count the same (`uniform`, as in the authors' code).
        client_networks: Another network for some clients, with a head of the same shape: a list with one for each, or a
            mapping from client id. Every client then draws its own extractor.
    """

    card = Card(
        paper="Liang et al., 2020",
        link="https://arxiv.org/abs/2001.01523",
        travels="the head",
        stays="an extractor",
        recipes=("lgfedavg_fashion.yaml", "lgfedavg_cifar10.yaml"),
        use="Clients' inputs or architectures differ and what follows from features is the same for all: only "
        "the head, which is small, travels.",
        invariant="a head of all layers is FedAvg",
    )

    network: Headed
    shared = ("network.head.",)

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        head_layers: int = 1,
        weighting: Weighting = "examples",
        client_networks: ClientNetworks = None,
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.factory = network
        self.head_layers = check_count("model.head_layers", head_layers)
        self.client_networks = client_networks
        self.network = self._headed(self.network, "model.network")

    def _headed(self, network: nn.Module, option: str) -> Headed:
        check_head(network, self.head_layers, option)
        return Headed(network, self.head_layers)

    def check(self, data: FederatedData) -> None:
        super().check(data)
        wanted = _shapes(self.network.head)
        for k, factory in sorted(numbered(self.client_networks).items()):
            with isolated(0):
                found = _shapes(self._built(factory).head)
            if found != wanted:
                needed = f"`model.client_networks` of client {k} must have a head as `model.network`, {wanted}"
                raise ValueError(f"{needed}, got {found}.")

    @draws_initial_values("client_networks")
    def configure_client(self, client: Client) -> None:
        if self.client_networks is not None:
            self.network = self._built(for_client(self.factory, self.client_networks, client))

    def _built(self, factory: NetworkFactory) -> Headed:
        return self._headed(build(factory, "model.client_networks"), "model.client_networks")


def _shapes(head: nn.Module) -> list[tuple[int, ...]]:
    return [tuple(tensor.shape) for tensor in head.state_dict().values()]
