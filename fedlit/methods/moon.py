"""MOON: model-contrastive federated learning. Li et al., 2021. https://arxiv.org/abs/2103.16257

As FedAvg, but features z of a client's network are drawn to z_glob, those of the network that it received, and away
from z_prev, those of the network that it had after its last round:

    L = CE(p, y) + mu * -log( e^{s(z, z_glob)/T} / (e^{s(z, z_glob)/T} + e^{s(z, z_prev)/T}) ),    s the cosine

Features are the inputs of the last linear layer. Before it a projection head of two layers is put into the network; the
output layer takes projections in paper and authors' code alike. That code puts the head into the network of every
method that it compares, so `mu: 0` is the FedAvg to compare with: the deeper network learns more slowly at first,
whatever mu. Both other networks are frozen and in evaluation mode, as in that code. In a client's first round
z_prev = z_glob.

Invariants: mu = 0 is FedAvg of the same network; in a client's first round the term starts at log 2.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.bounds import check_count, check_number, check_positive
from fedlit.data.client import Client
from fedlit.heads import check_head, with_features, with_projection
from fedlit.losses import model_contrastive
from fedlit.methods.base import Card, Weighting, loss_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.states import copy_into, groups
from fedlit.tasks import Task


class MOON(FedAvg):
    """One network for all; a client's features keep to the global model's, and away from its own last ones.

    Args:
        network: Builds the network, with a linear layer as its last.
        mu: Strength of the contrast; 0 is FedAvg. The authors: 1, 5 or 10.
        temperature: T of the contrast.
        projection: Width of the projection head that is put before the last layer; None leaves the network as it is,
            and compares what its last layer is given (as PFLlib and FL-bench do).
    """

    card = Card(
        paper="Li et al., 2021",
        link="https://arxiv.org/abs/2103.16257",
        travels="the network",
        stays="its last network",
        recipes=("moon_fashion.yaml", "moon_cifar10.yaml"),
        use="One model for all, images, and networks whose features mean something early. Every batch passes "
        "three networks.",
        invariant="mu = 0 is FedAvg of the same network",
    )

    shared = ("network.",)
    has_previous: Tensor

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        mu: float = 1.0,
        temperature: float = 0.5,
        projection: int | None = 256,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.mu = check_number("model.mu", mu, least=0)
        self.temperature = check_positive("model.temperature", temperature)
        check_head(self.network, 1)
        if projection is not None:
            with_projection(self.network, check_count("model.projection", projection))
        self.previous = copy.deepcopy(self.network)
        self.projection = projection
        self.register_buffer("has_previous", torch.tensor(False))
        self._received: list[nn.Module] = []  # in a list, so that it is no part of the state

    def on_client_start(self, client: Client | None) -> None:
        self._received = [copy.deepcopy(self.network).eval()]
        self.previous.eval()
        if not self.has_previous:
            self._keep_network()

    def on_client_end(self, client: Client) -> None:
        self._received = []
        self._keep_network()

    def _keep_network(self) -> None:
        copy_into(self.previous.state_dict(keep_vars=True), self.network.state_dict())
        self.has_previous.fill_(True)

    def parameters_of(self, client: Client | None) -> Iterable[dict[str, Any]]:
        return groups(self.network)

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        if self.mu == 0:
            return super().training_step(batch, batch_idx)
        x, y = batch
        z, output = with_features(self.network, x)
        with torch.no_grad():
            z_glob, _ = with_features(self._received[0], x)
            z_prev, _ = with_features(self.previous, x)
        loss = loss_of(self)(output, y)
        contrast = model_contrastive(z, z_glob, z_prev, self.temperature)
        self.log_dict({"train_loss": loss, "contrast": contrast})
        return loss + self.mu * contrast
