"""Ensemble distillation for model fusion (FedDF). Lin et al., 2020. https://arxiv.org/abs/2006.07242

As FedAvg, but the server trains the mean x of a round's networks x_k further: on a public pool without labels it learns
the mean of their logits:

    L(x) = KL(softmax(1/|S_t| * sum_k f(x_k, d)) || softmax(f(x, d)))        over batches d of the pool

by Adam, new in every round, at a rate that falls to 0 along a cosine. Clients of another architecture have a mean x of
their own, taught by all. With `patience` the best state is kept, by the accuracy on the clients' validation samples;
the paper's server has samples of its own for that.

Invariant: 0 epochs of distillation are FedAvg, within each architecture.
"""

import copy
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

from fedlit.aggregation import State, Upload
from fedlit.bounds import check_count
from fedlit.data.client import Client, Server
from fedlit.losses import distillation_loss
from fedlit.methods.base import Card, FederatedModule, Weighting
from fedlit.methods.factories import ClientNetworks, ClientOptimizers, NetworkFactory, build, for_client, kind, numbered
from fedlit.methods.stage import EarlyStopping, Stage
from fedlit.methods.states import Ensemble

RATE = 1e-3  # of the paper's Adam


class Architectures(nn.ModuleList):
    """A network of each architecture among the clients, the common one first.

    Args:
        network: Builds the common one, which is also the server's.
        client_networks: Another for some clients: a list with one for each, or a mapping from client id.

    Example:
        >>> Architectures(nn.Flatten, {1: nn.ReLU, 4: nn.ReLU})
        Architectures(
          (0): Flatten(start_dim=1, end_dim=-1)
          (1): ReLU()
        )
    """

    def __init__(self, network: NetworkFactory, client_networks: ClientNetworks) -> None:
        others = numbered(client_networks).values()
        factories = {kind(factory): factory for factory in (network, *others)}
        super().__init__(build(factory, "model.network") for factory in factories.values())
        self.kinds = list(factories)
        self.common = network
        self.per_client = client_networks

    def number_of(self, client: Client | None) -> int:
        """The place of the client's network."""
        if client is None or isinstance(client, Server):
            return 0
        return self.kinds.index(kind(for_client(self.common, self.per_client, client)))

    def of(self, client: Client | None) -> nn.Module:
        """The client's network."""
        return self[self.number_of(client)]


def number_in(names: Iterable[str]) -> int:
    """The architecture of a state, from the names of its entries in a method's `networks`.

    Example:
        >>> number_in(["networks.1.weight", "networks.1.bias"])
        1
    """
    return int(next(iter(names)).split(".")[1])


def by_architecture(uploads: Iterable[Upload]) -> dict[int, list[Upload]]:
    """The uploads of clients with the same architecture, in client order."""
    alike: dict[int, list[Upload]] = {}
    for upload in uploads:
        alike.setdefault(number_in(upload.state), []).append(upload)
    return alike


class FedDF(FederatedModule):
    """A network for all of an architecture, averaged every round and taught by everybody's.

    Args:
        network: Builds the network; the global model is of its architecture.
        distil_epochs: Passes over the public pool in every round, at most; 0 is FedAvg.
        patience: Stop after so many epochs without a better accuracy on the clients' validation samples, and keep the
            best state; None takes all epochs.
        distil_optimizer: Builds the server's optimiser; Adam with rate 1e-3 by default.
        weighting: A client counts by its `examples`, or all count the same (`uniform`), in the mean of networks; as
            teachers all count the same.
    """

    card = Card(
        paper="Lin et al., 2020",
        link="https://arxiv.org/abs/2006.07242",
        travels="the network",
        recipes=("feddf_fashion.yaml", "feddf_cifar10.yaml"),
        use="The server has public samples without labels, or clients have several architectures and one "
        "global model of each is wanted. The server must be able to train.",
        invariant="0 epochs of distillation are FedAvg",
        tasks=("classification",),
    )

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        distil_epochs: int = 1,
        patience: int | None = None,
        distil_optimizer: OptimizerCallable | None = None,
        client_networks: ClientNetworks = None,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
    ) -> None:
        super().__init__(optimizer, client_optimizers)
        self.distil_epochs = check_count("model.distil_epochs", distil_epochs, least=0)
        if patience is not None:
            check_count("model.patience", patience)
        self.patience = patience
        self.distil_optimizer = distil_optimizer
        self.weighting = weighting
        self.client_networks = client_networks
        self.networks = Architectures(network, client_networks)
        self.teachers: Ensemble | None = None
        self.recorded: Tensor | None = None

    def configure_stages(self) -> list[Stage]:
        stopping = None if self.patience is None else EarlyStopping("acc", self.patience, check_every=1)
        distil = Stage(
            "distil",
            side="server",
            epochs=self.distil_epochs,
            upload="none",
            public="inputs",
            early_stopping=stopping,
        )
        return [Stage("federate", followed_by=distil, own_models=len(self.networks) > 1)]

    def global_model(self) -> nn.Module:
        return self.networks[0]

    def download(self, client: Client, current: State, uploads: Mapping[int, State]) -> State:
        return _of(self.networks.number_of(client), current)

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        if len(self.networks) == 1:
            return self.combine(uploads, current)
        agreed: State = {}
        for number, alike in by_architecture(uploads).items():
            agreed |= self.combine(alike, _of(number, current))
        return agreed

    def on_client_start(self, client: Client | None) -> None:
        self.wants_index = False
        self.teachers = self.recorded = None

    def on_server_start(self, server: Server, uploads: Mapping[int, State]) -> None:
        self.wants_index = True
        numbers = {k: number_in(state) for k, state in uploads.items()}
        self.teachers = Ensemble(
            {k: {name.split(".", 2)[2]: t for name, t in state.items()} for k, state in uploads.items()},
            prefix="",
            build=lambda k: copy.deepcopy(self.networks[numbers[k]]),
            architecture=lambda k: numbers[k],
            device=self.device,
        )
        if server.sees_the_same_inputs and self.distil_epochs:
            batches = server.train_batches(None).to(self.device)
            batches.drop_last = False
            self.recorded = torch.cat([self.target(x.to(self.dtype)) for x, _ in batches])

    def target(self, x: Tensor) -> Tensor:
        """The mean of all teachers' logits, ``[N, C]``."""
        assert self.teachers is not None  # set before the server trains
        return self.teachers(x).mean(dim=0)

    def forward(self, x: Tensor) -> Tensor:
        return self.networks.of(self.client)(x)

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        if not isinstance(self.client, Server):
            return super().training_step(batch, batch_idx)  # type: ignore[arg-type]
        x, _, index = batch
        target = self.target(x) if self.recorded is None else self.recorded[index]
        # Each student's gradient is its own: no other loss depends on it.
        loss = torch.stack([distillation_loss(student(x), target) for student in self.networks]).sum()
        self.log("distillation_loss", loss)
        return loss

    def parameters_of(self, client: Client | None) -> Iterable[nn.Parameter]:
        trained = self.networks if isinstance(client, Server) else self.networks.of(client)
        return (parameter for parameter in trained.parameters() if parameter.requires_grad)

    def configure_optimizers(self) -> Any:
        if not isinstance(self.client, Server):
            return super().configure_optimizers()
        factory = self.distil_optimizer or partial(torch.optim.Adam, lr=RATE)
        optimizer = factory(self.parameters_of(self.client))
        steps = max(1, int(self.trainer.estimated_stepping_batches))
        return [optimizer], [{"scheduler": CosineAnnealingLR(optimizer, steps), "interval": "step"}]


def _of(number: int, state: Mapping[str, Tensor]) -> State:
    """The entries of an architecture."""
    return {name: tensor for name, tensor in state.items() if number_in([name]) == number}
