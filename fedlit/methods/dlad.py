"""Adaptive distillation for decentralised learning (DLAD). Ma et al., 2020. https://arxiv.org/abs/2008.07948

One shot. Client i trains a classifier M_i on its samples, then a binary C_i that tells them from the public pool, and
uploads both, once. The server trains the global model M on the pool alone, without its labels:

    t(x) = sum_i w_i(x) M_i(x),    w_i(x) = exp(C_i(x) / T) / sum_j exp(C_j(x) / T),    L = CE(t(x), M(x))

`average` takes w_i = 1/N; `labeled`, an upper bound, the C_i of an optimal classifier that knows a sample's label.

Laws: equal C_i are the mean of all teachers; `labeled` with IID clients is `average`; every client uploads just once.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.aggregation import State
from fedlit.data.client import Client, Server
from fedlit.heads import Scattered, with_outputs
from fedlit.losses import density_loss, soft_cross_entropy
from fedlit.methods.base import (
    ClientNetworks,
    ClientOptimizers,
    FederatedModule,
    NetworkFactory,
    build,
    copy_into,
    for_client,
    kind,
)
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.stage import Stage
from fedlit.methods.teachers import Ensemble, Teachers, optimal_confidence
from fedlit.records import checkpoint
from fedlit.rng import isolated


class Density(FedAvg):
    """C_i: is a sample the client's own (target >= 0), or of the public pool (-1)?"""

    sample_weight = 1.5

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        loss = density_loss(self.network(batch[0]).squeeze(1), batch[1] >= 0, self.sample_weight)
        self.log("density_loss", loss)
        return loss


class Student(FedAvg):
    """M, which learns what its teachers say of public samples."""

    wants_index = True
    teachers: Teachers | None = None
    recorded: Tensor | None = None

    def training_step(self, batch: tuple[Tensor, Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y, index = batch
        loss = soft_cross_entropy(
            self.network(x), self.teachers(x, y) if self.recorded is None else self.recorded[index]
        )
        self.log("distillation_loss", loss)
        return loss


class DLAD(FederatedModule):
    """One-shot distillation of the clients' classifiers into a global model.

    All clients train once, for as many epochs as said here; `trainer.num_rounds`, `local_epochs` and `fraction_fit`
    play no part.

    Args:
        network: Builds a client's classifier; its density classifier is the same with a head of one output.
        optimizer: Builds the optimiser of each part from its parameters.
        student: Builds the global model; by default as `network`.
        aggregator: What teachers count by: `adaptive`, `average`, or `labeled`, which alone sees the pool's labels.
        temperature: T; large is the mean of all teachers.
        sample_weight: Of an own sample in the density classifier's loss.
        client_epochs: Of a client's classifier.
        density_epochs: Of its density classifier.
        distil_epochs: Of the global model on the public pool; each is a round of its own.
        client_networks: Another network for some clients: a list with one for each, or a mapping from client id.
        client_classes: The classes that a client's outputs stand for, by client id; all classes by default.
        record: Compute the teachers' answers once where inputs are the same in every epoch.
        earlier: A checkpoint whose clients' uploads are taken as they are: only new clients train.
        client_optimizers: Another optimiser for some clients: a list with one for each, or a mapping from client id.
    """

    shared, server_only, monitor = (), ("student.",), "acc/global_on_own"

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        student: NetworkFactory | None = None,
        aggregator: Literal["adaptive", "average", "labeled"] = "adaptive",
        temperature: float = 0.05,
        sample_weight: float = 1.5,
        client_epochs: int = 50,
        density_epochs: int = 20,
        distil_epochs: int = 100,
        client_networks: ClientNetworks = None,
        client_classes: dict[int, list[int]] | None = None,
        record: bool = True,
        earlier: str | None = None,
        client_optimizers: ClientOptimizers = None,
    ) -> None:
        super().__init__(optimizer, client_optimizers)
        if aggregator not in ("adaptive", "average", "labeled"):
            raise ValueError(f"`model.aggregator` must be adaptive, average or labeled, got {aggregator!r}.")
        self.epochs = {"client_epochs": client_epochs, "density_epochs": density_epochs, "distil_epochs": distil_epochs}
        for name, value in ({"temperature": temperature, "sample_weight": sample_weight} | self.epochs).items():
            if value <= 0:
                raise ValueError(f"`model.{name}` must be above 0, got {value}.")
        self.factory, self.client_networks, self.client_classes = network, client_networks, client_classes or {}
        self.aggregator, self.temperature, self.record, self.earlier = aggregator, temperature, record, earlier
        self.collected = ("classifier.", "density.") if aggregator == "adaptive" else ("classifier.",)
        self.classifier = FedAvg(network, optimizer, client_optimizers=client_optimizers)
        self.density = Density(lambda: with_outputs(network(), 1), optimizer, client_optimizers=client_optimizers)
        self.density.sample_weight = sample_weight
        self.student = Student(student or network, optimizer)
        self._taught_by: Mapping[int, State] | None = None

    def configure_stages(self) -> list[Stage]:
        client_epochs, density_epochs, distil_epochs = self.epochs.values()
        adaptive, public = self.aggregator == "adaptive", "labels" if self.aggregator == "labeled" else "inputs"
        classify = Stage(
            "classify",
            self.classifier,
            rounds=1,
            epochs=client_epochs,
            upload="none" if adaptive else "collect",
            reported_on_pooled=True,
        )
        density = Stage(
            "density",
            self.density,
            rounds=1,
            epochs=density_epochs,
            upload="collect",
            public="inputs",
            needs="classifier.",
            reported_as=None,
        )
        distil = Stage("distil", self.student, "server", distil_epochs, epochs=1, upload="none", public=public)
        return [classify, density, distil] if adaptive else [classify, distil]

    def earlier_uploads(self) -> dict[int, State]:
        try:
            uploads = {} if self.earlier is None else checkpoint.load(Path(self.earlier))["collected"]
        except ValueError as error:
            told = str(error).replace("`--ckpt_path`", "`model.earlier`").replace(" file, `last` or `best`", " file")
            raise ValueError(told) from error
        if self.earlier is not None and not uploads:
            raise ValueError(f"`model.earlier` {self.earlier} holds no client's uploads.")
        return {k: {n: t.to(self.device) for n, t in state.items()} for k, state in uploads.items()}

    def configure_client(self, client: Client) -> None:
        self.classifier.network, self.density.network = self._classifier(client), self._density(client)

    def _classifier(self, client: Client) -> nn.Module:
        network = build(for_client(self.factory, self.client_networks, client), "model.client_networks")
        classes = self.client_classes.get(client.id)
        return network if classes is None else Scattered(network, classes, client.num_classes)

    def _density(self, client: Client) -> nn.Module:
        return with_outputs(for_client(self.factory, self.client_networks, client)(), 1)

    def on_client_start(self, client: Client) -> None:
        own = None if client is None else self.client_classes.get(client.id)
        if own is not None and (others := set(client.train_batches().y.tolist()) - set(own)):
            raise ValueError(f"it holds samples of class {min(others)}, which `model.client_classes` leaves out")
        if self.stage and self.stage.name == "density":  # it starts from the trained classifier, but for the new head
            trained = self.classifier.network if own is None else self.classifier.network.network
            live = self.density.network.state_dict(keep_vars=True)
            copy_into(live, {n: t for n, t in trained.state_dict().items() if live[n].shape == t.shape})

    def on_server_start(self, server: Server, uploads: Mapping[int, State]) -> None:
        if self._taught_by is uploads:
            return
        self._taught_by, student = uploads, self.student
        with isolated(0):  # live networks are drawn at random before they are lent their states
            student.teachers = self._teachers(server, uploads)
        batches = server.train_batches(None, public=self.stage.public).to(self.device)
        recordable = self.record and server.sees_the_same_inputs
        batches.drop_last = False
        answers = (student.teachers(x.to(self.dtype), y) for x, y in batches)
        student.recorded = torch.cat([*answers]) if recordable else None

    def _teachers(self, server: Server, uploads: Mapping[int, State]) -> Teachers:
        clients = {k: server.data.client(k) for k in sorted(uploads)}
        chosen = {k: for_client(self.factory, self.client_networks, client) for k, client in clients.items()}
        kinds = {k: (kind(factory), k in self.client_classes) for k, factory in chosen.items()}

        def ensemble(part: str, make: Callable[[Client], nn.Module]) -> Ensemble:
            return Ensemble(uploads, f"{part}.network.", lambda k: make(clients[k]), kinds.get, self.device)

        if self.aggregator == "adaptive":
            density = ensemble("density", self._density)
            confidence = lambda x, y: density(x).sigmoid().squeeze(2)  # noqa: E731
        elif self.aggregator == "average":
            confidence = lambda x, y: x.new_zeros(len(clients), len(x))  # noqa: E731
        else:
            shares = torch.stack([client.class_shares() for client in clients.values()])
            optimal = optimal_confidence(shares, server.data.public_pool.class_shares(server.num_classes)).to(
                self.device
            )
            confidence = lambda x, y: optimal[:, y]  # noqa: E731
        return Teachers(ensemble("classifier", self._classifier), confidence, self.temperature)

    def global_model(self) -> nn.Module:
        return self.student.network

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x)

    def parameters_of(self, client: Client | None) -> Iterable[nn.Parameter]:
        return self.classifier.parameters()
