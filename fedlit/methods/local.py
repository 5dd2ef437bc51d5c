"""Local-only training: the baseline without a federation. Every client trains its own network; nothing is sent.

Invariant: a client's network ends as if it had been trained alone, for as many epochs, by a plain loop.
"""

from lightning.pytorch.cli import OptimizerCallable

from fedlit.data.client import Client
from fedlit.methods.base import Card, FederatedModule
from fedlit.methods.factories import (
    ClientNetworks,
    ClientOptimizers,
    NetworkFactory,
    build,
    draws_initial_values,
    for_client,
)
from fedlit.methods.stage import Stage
from fedlit.tasks import Task


class LocalOnly(FederatedModule):
    """A network per client, each on its own.

    Args:
        network: Builds the network of a client; every client draws its own initial weights.
        optimizer: Builds the optimiser from the parameters; its state is kept between rounds.
    """

    card = Card(
        travels="nothing",
        stays="the network",
        stages=("local",),
        recipes=("local_fashion.yaml", "local_cifar10.yaml"),
        use="The control of every personal model: what clients reach without a federation. Whatever does no "
        "better is not worth its bytes.",
        invariant="other clients make no difference",
    )

    shared: tuple[str, ...] = ()

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        client_networks: ClientNetworks = None,
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(optimizer, client_optimizers, task)
        self.factory = network
        self.client_networks = client_networks
        self.network = build(network, "model.network")

    def configure_stages(self) -> list[Stage]:
        return [Stage("local", samples="all", upload="none")]

    @draws_initial_values("client_networks")
    def configure_client(self, client: Client) -> None:
        factory = for_client(self.factory, self.client_networks, client)
        self.network = build(factory, "model.client_networks")
