"""Federated learning by model distillation (FedMD). Li and Wang, 2019. https://arxiv.org/abs/1910.03581

Clients have networks f_k of their own, of any architecture, and exchange scores of a labelled public pool D_0. Each
first learns D_0, then its own samples. In round j, on a subset d_j of D_0 that is drawn anew:

    digest:   min |f_k(x) - f~(x)|       over x in d_j, with the consensus f~ = 1/m * sum_k f_k
    revisit:  min CE(softmax(f_k(x)), y) over own samples
    communicate: f_k(x), x in d_{j+1}

Scores are logits, and the distance is their mean absolute difference, as in the authors' code; the paper has "class
scores" and "approach". In the first round there is nothing to digest yet.

Invariants: with one client the consensus is its own scores; without digestion a client is alone.
"""

from collections.abc import Iterator
from itertools import islice

import torch
import torch.nn.functional as F
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedlit.bounds import check_count
from fedlit.data.batches import num_batches
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.methods.base import Card
from fedlit.methods.factories import ClientNetworks, ClientOptimizers, NetworkFactory, for_client
from fedlit.methods.local import LocalOnly
from fedlit.methods.stage import Stage
from fedlit.rng import generator


class FedMD(LocalOnly):
    """A network per client; they agree on their scores of public samples.

    Args:
        network: Builds the network of a client; every client draws its own initial weights.
        optimizer: Builds the optimiser of local training, and of digestion, from the parameters.
        subset: Public samples in a round, at most.
        digest_epochs: Passes over them in a round; 0 leaves every client alone.
        public_epochs: Passes over the public pool and its labels before the first round, at most.
        private_epochs: Passes over a client's own samples after that.
    """

    card = Card(
        paper="Li and Wang, 2019",
        link="https://arxiv.org/abs/1910.03581",
        travels="class scores of public samples",
        stays="the network",
        stages=("public", "private", "exchange"),
        recipes=("fedmd_fashion.yaml", "fedmd_cifar10.yaml"),
        use="Clients have networks of their own and a labelled public set is there for all: scores of its "
        "samples travel, never weights. There is no global model.",
        invariant="with one client the consensus is its own scores",
        tasks=("classification",),
    )

    shared = ("scores",)  # down: f~ of d_j; up: f_k of d_{j+1}
    weighting = "uniform"
    labelled_pool = True

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        subset: int = 5000,
        digest_epochs: int = 1,
        public_epochs: int = 5,
        private_epochs: int = 5,
        client_networks: ClientNetworks = None,
        client_optimizers: ClientOptimizers = None,
    ) -> None:
        super().__init__(network, optimizer, client_networks, client_optimizers)
        self.subset = check_count("model.subset", subset)
        self.digest_epochs = check_count("model.digest_epochs", digest_epochs, least=0)
        self.public_epochs = check_count("model.public_epochs", public_epochs, least=0)
        self.private_epochs = check_count("model.private_epochs", private_epochs, least=0)
        self.scores: Tensor
        self.register_buffer("scores", torch.zeros(0, 0))  # `check` knows how many samples and classes there are

    def check(self, data: FederatedData) -> None:
        super().check(data)
        size = (min(self.subset, len(data.public_pool)), data.splits.num_classes)
        if self.scores.shape != size:
            self.scores = torch.zeros(size)

    def configure_stages(self) -> list[Stage]:
        return [
            Stage("public", rounds=1, epochs=self.public_epochs, samples="public", public="labels", upload="none"),
            Stage("private", rounds=1, epochs=self.private_epochs, upload="none"),
            Stage("exchange"),
        ]

    def on_client_start(self, client: Client | None) -> None:
        if client is None or not self._exchanges or not self.scores.any():  # there is no consensus yet
            return
        optimizer = for_client(self.optimizer, self.client_optimizers, client)(self.network.parameters())
        # As many as in local training by `data.drop_last`: a last batch of one sample is no step.
        num_steps = max(1, num_batches(len(self.scores), client.data.batch_size, client.data.drop_last))
        for _ in range(self.digest_epochs):
            start = 0
            for x in islice(self._public(client, client.round), num_steps):
                consensus = self.scores[start : start + len(x)]
                start += len(x)
                optimizer.zero_grad()
                loss = F.l1_loss(self.network(x), consensus)
                loss.backward()
                optimizer.step()
                self.log("digestion_loss", loss)

    @torch.no_grad()
    def on_client_end(self, client: Client) -> None:
        if self._exchanges:
            self.network.eval()
            self.scores.copy_(torch.cat([self.network(x) for x in self._public(client, client.round + 1)]))

    @property
    def _exchanges(self) -> bool:
        return self.stage is not None and self.stage.name == "exchange"

    def _public(self, client: Client, round: int) -> Iterator[Tensor]:
        """Batches of the round's public samples, the same for every client."""
        batches = client.public_batches(generator(0, "FedMD", round))
        batches.drop_last = False
        left = len(self.scores)
        for x, _ in batches:
            if left <= 0:
                return
            yield x[:left].to(self.scores)
            left -= len(x)
