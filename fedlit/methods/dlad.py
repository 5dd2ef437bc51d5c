"""Adaptive distillation for decentralised learning (DLAD). Ma et al., 2020. https://arxiv.org/abs/2008.07948

One shot. Client i trains a classifier M_i on its samples, then a binary C_i that separates them from the public pool,
and uploads both, once. The server trains the global model M on the pool alone, without its labels:

    t(x) = sum_i w_i(x) M_i(x),    w_i(x) = exp(C_i(x) / T) / sum_j exp(C_j(x) / T),    L = CE(t(x), M(x))

`average` takes w_i = 1/N; `labeled`, an upper bound, the C_i of an optimal classifier that knows a sample's label. A
variant overrides `confidence` (C).

Invariants: equal C_i are the mean of all teachers; `labeled` with IID clients is `average`; every client uploads once.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.aggregation import State
from fedlit.bounds import check_choice, check_count, check_positive
from fedlit.data.client import Client, Public, Server
from fedlit.data.federated import FederatedData
from fedlit.heads import Scattered, with_outputs
from fedlit.losses import density_loss, soft_cross_entropy, teacher_weights
from fedlit.methods.base import Card, FederatedModule
from fedlit.methods.factories import (
    ClientNetworks,
    ClientOptimizers,
    NetworkFactory,
    build,
    check_choices,
    draws_initial_values,
    for_client,
    kind,
)
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.stage import Stage
from fedlit.methods.states import Ensemble, copy_into, twin
from fedlit.records import checkpoint
from fedlit.rng import isolated

DensityStart = Literal["classifier", "scratch"]
TeacherWeights = Literal["adaptive", "average", "labeled"]


class Density(FedAvg):
    """C_i: is a sample the client's own (target >= 0), or of the public pool (-1)?"""

    part_of = "DLAD"
    sample_weight = 1.5

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        loss = density_loss(self.network(x).squeeze(1), y >= 0, self.sample_weight)
        self.log("density_loss", loss)
        return loss


class Student(FedAvg):
    """M, which learns what its teachers predict of public samples."""

    part_of = "DLAD"
    wants_index = True
    teach: Callable[[Tensor, Tensor], Tensor] | None = None
    recorded: Tensor | None = None

    def training_step(self, batch: tuple[Tensor, ...], batch_idx: int) -> Tensor:
        x, y, index = batch
        z = self.network(x)
        if self.recorded is not None:
            target = self.recorded[index]
        else:
            assert self.teach is not None  # set before the server trains
            target = self.teach(x, y)
        loss = soft_cross_entropy(z, target)
        self.log("distillation_loss", loss)
        return loss


@dataclass(frozen=True)
class Teachers:
    """The clients' networks on the server while it distils.

    Attributes:
        classifiers: The M_i: from ``[N, ...]`` to logits ``[K, N, C]``.
        densities: The density classifiers, to logits ``[K, N, 1]``; None unless `adaptive`.
        optimal: The optimal confidence for each class, ``[K, C]``; None unless `labeled`.
    """

    classifiers: Ensemble
    densities: Ensemble | None = None
    optimal: Tensor | None = None


class DLAD(FederatedModule):
    """One-shot distillation of the clients' classifiers into a global model.

    All clients train once, for the epochs given here; `trainer.num_rounds`, `local_epochs` and `fraction_fit` have no
    effect.

    Args:
        network: Builds a client's classifier; its density classifier is the same with a head of one output.
        optimizer: Builds the optimiser of each part from its parameters.
        student: Builds the global model; by default as `network`.
        aggregator: What teachers count by: `adaptive`, `average`, or `labeled`, which alone sees the pool's labels, and
            the class probabilities that the partition draws clients by.
        temperature: T; large is the mean of all teachers.
        sample_weight: Of an own sample in the density classifier's loss.
        client_epochs: Of a client's classifier.
        density_epochs: Of its density classifier.
        distil_epochs: Of the global model on the public pool; each is a round of its own.
        client_classes: The classes that a client's outputs stand for, by client id; all classes by default.
        record: Compute the teachers' targets once where inputs are the same in every epoch.
        earlier: A checkpoint whose clients' uploads are taken as they are: only new clients train.
        density_from: A density classifier starts from the trained `classifier`, as in the paper, or from `scratch`, a
            control.
    """

    card = Card(
        paper="Ma et al., 2020",
        link="https://arxiv.org/abs/2008.07948",
        travels="a classifier and a density classifier, up, once",
        stages=("classify", "density", "distil"),
        recipes=("dlad_fashion.yaml", "dlad_cifar10.yaml"),
        use="Clients take part just once, and public samples without labels resemble theirs; networks may differ.",
        invariant="equal confidences are the mean of all teachers; every client uploads once",
        tasks=("classification",),
    )

    shared = ()
    server_only = ("student.",)
    monitor = "acc/global_on_own"

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        student: NetworkFactory | None = None,
        aggregator: TeacherWeights = "adaptive",
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
        density_from: DensityStart = "classifier",
    ) -> None:
        super().__init__(optimizer, client_optimizers)
        check_choice("model.density_from", density_from, DensityStart)
        check_choice("model.aggregator", aggregator, TeacherWeights)
        self.aggregator = aggregator
        self.temperature = check_positive("model.temperature", temperature)
        self.classify_epochs = check_count("model.client_epochs", client_epochs)
        self.density_epochs = check_count("model.density_epochs", density_epochs)
        self.distil_epochs = check_count("model.distil_epochs", distil_epochs)
        self.factory = network
        self.client_networks = client_networks
        self.client_classes = client_classes or {}
        self.record = record
        self.earlier = earlier
        self.density_from = density_from
        self.collected = ("classifier.", "density.") if aggregator == "adaptive" else ("classifier.",)
        self.classifier = FedAvg(network, optimizer, client_optimizers=client_optimizers)
        self.density = Density(lambda: with_outputs(network(), 1), optimizer, client_optimizers=client_optimizers)
        self.density.sample_weight = check_positive("model.sample_weight", sample_weight)
        self.student = Student(student or network, optimizer)
        self._taught_by: Mapping[int, State] | None = None

    def check(self, data: FederatedData) -> None:
        super().check(data)
        check_choices("model.client_classes", self.client_classes, data.num_clients)
        uploads = self.earlier_uploads()
        taking_part = data.num_clients - data.unseen_clients
        for k in uploads:
            if k >= taking_part or not data.assignment.num_opted_in[k]:
                raise ValueError(
                    f"`model.earlier` holds an upload of client {k}, who takes no part here or has opted out."
                )
        with isolated(0):
            for k, upload in uploads.items():
                self._check_upload(data.client(k), upload)

    def _check_upload(self, client: Client, upload: State) -> None:
        """Refuse an upload of an earlier run that is not of the network that the client has now."""
        trial = twin(self)  # building the client's networks must not change the ones that are about to train
        trial.configure_client(client)
        live = trial.state_dict()
        for name in live:
            if name.startswith(self.collected) and name not in upload:
                raise ValueError(
                    f"`model.earlier`: client {client.id} uploaded no {name!r}; was its aggregator another?"
                )
        for name, tensor in upload.items():
            if name not in live or live[name].shape != tensor.shape:
                raise ValueError(
                    f"`model.earlier` holds an upload of client {client.id} that its network cannot take: {name!r}."
                )

    def configure_stages(self) -> list[Stage]:
        adaptive = self.aggregator == "adaptive"
        classify = Stage(
            "classify",
            self.classifier,
            rounds=1,
            epochs=self.classify_epochs,
            upload="none" if adaptive else "collect",
            reported_on_pooled=True,
        )
        density = Stage(
            "density",
            self.density,
            rounds=1,
            epochs=self.density_epochs,
            upload="collect",
            public="inputs",
            needs="classifier.",
            reported_as=None,
        )
        distil = Stage(
            "distil",
            self.student,
            side="server",
            rounds=self.distil_epochs,
            epochs=1,
            upload="none",
            public=self._public,
        )
        if adaptive:
            return [classify, density, distil]
        return [classify, distil]

    @property
    def _public(self) -> Public:
        """The use of the public pool by the server."""
        return "labels" if self.aggregator == "labeled" else "inputs"

    def earlier_uploads(self) -> dict[int, State]:
        return uploads_of(self.earlier, self.device)

    @draws_initial_values("client_networks", "client_classes")
    def configure_client(self, client: Client) -> None:
        self.classifier.network = self._classifier(client)
        self.density.network = self._density(client)

    def _classifier(self, client: Client) -> nn.Module:
        network = build(for_client(self.factory, self.client_networks, client), "model.client_networks")
        classes = self.client_classes.get(client.id)
        if classes is None:
            return network
        return Scattered(network, classes, client.num_classes)

    def _density(self, client: Client) -> nn.Module:
        factory = for_client(self.factory, self.client_networks, client)
        return with_outputs(factory(), 1)

    def on_client_start(self, client: Client | None) -> None:
        if client is not None:
            self._check_classes(client)
        begins_density = self.stage is not None and self.stage.name == "density"
        if begins_density and self.density_from == "classifier":
            self._start_density()

    def _check_classes(self, client: Client) -> None:
        own = self.client_classes.get(client.id)
        if own is None:
            return
        others = set(client.labels().tolist()).difference(own)
        if others:
            raise ValueError(f"it holds samples of class {min(others)}, which `model.client_classes` leaves out")

    def _start_density(self) -> None:
        """A density classifier starts from the trained classifier, but for its new head."""
        trained = self.classifier.network
        if isinstance(trained, Scattered):
            trained = trained.network
        live = self.density.network.state_dict(keep_vars=True)
        kept = {n: t for n, t in trained.state_dict().items() if live[n].shape == t.shape}
        copy_into(live, kept)

    def on_server_start(self, server: Server, uploads: Mapping[int, State]) -> None:
        if self._taught_by is uploads:
            return
        self._taught_by = uploads
        with isolated(0):  # live networks are drawn at random before states are loaded into them
            teachers = self._teachers(server, uploads)

        def teach(x: Tensor, y: Tensor) -> Tensor:  # a function, so that copies of the student do not copy the teachers
            return self.target(teachers, x, y)

        self.student.teach = teach
        self.student.recorded = None
        if self.record and server.sees_the_same_inputs:
            batches = server.train_batches(None, public=self._public).to(self.device)
            batches.drop_last = False
            self.student.recorded = torch.cat([teach(x.to(self.dtype), y) for x, y in batches])

    def target(self, teachers: Teachers, x: Tensor, y: Tensor) -> Tensor:
        """t(x), ``[N, C]``."""
        w = teacher_weights(self.confidence(teachers, x, y), self.temperature)
        p = teachers.classifiers(x).softmax(dim=2)
        return (w[:, :, None] * p).sum(dim=0)

    def confidence(self, teachers: Teachers, x: Tensor, y: Tensor) -> Tensor:
        """C_i(x) of each teacher, ``[K, N]``.

        Args:
            teachers: Of all clients.
            x: Public samples ``[N, ...]``.
            y: Their labels ``[N]``, all -1 unless `labeled`.
        """
        if teachers.densities is not None:
            return teachers.densities(x).sigmoid().squeeze(2)
        if teachers.optimal is not None:
            return teachers.optimal[:, y]
        return x.new_zeros(len(teachers.classifiers), len(x))

    def _teachers(self, server: Server, uploads: Mapping[int, State]) -> Teachers:
        clients = {k: server.data.client(k) for k in sorted(uploads)}

        def ensemble(part: str, make: Callable[[Client], nn.Module]) -> Ensemble:
            return Ensemble(
                uploads,
                prefix=f"{part}.network.",
                build=lambda k: make(clients[k]),
                architecture=lambda k: self._architecture(clients[k]),
                device=self.device,
            )

        densities = ensemble("density", self._density) if self.aggregator == "adaptive" else None
        optimal = self._optimal_confidence(server, clients.values()) if self.aggregator == "labeled" else None
        return Teachers(ensemble("classifier", self._classifier), densities, optimal)

    def _architecture(self, client: Client) -> object:
        """Equal for clients whose networks are made alike."""
        factory = for_client(self.factory, self.client_networks, client)
        return kind(factory), client.id in self.client_classes

    def _optimal_confidence(self, server: Server, clients: Iterable[Client]) -> Tensor:
        p = torch.stack([client.class_probabilities() for client in clients])
        public_shares = server.data.public_pool.class_shares(server.num_classes)
        return optimal_confidence(p, public_shares).to(self.device)

    def global_model(self) -> nn.Module:
        return self.student.network

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(x)

    def parameters_of(self, client: Client | None) -> Iterable[nn.Parameter]:
        return self.classifier.parameters()


def optimal_confidence(p: Tensor, public_shares: Tensor) -> Tensor:
    r"""The confidence of the best density classifier for each class, ``[K, C]``.

    .. math:: C_i^*(y) = \frac{p_i(y)}{p_i(y) + p_{dist}(y)}

    Args:
        p: Probability of each class at each client, ``[K, C]``.
        public_shares: Fraction of each class in the public pool, ``[C]``.

    Example:
        >>> optimal_confidence(torch.tensor([[0.5, 0.0]]), torch.tensor([0.1, 0.1]))
        tensor([[0.8333, 0.0000]])
    """
    return (p / (p + public_shares)).nan_to_num()  # a class that nobody has


def uploads_of(earlier: str | None, device: torch.device) -> dict[int, State]:
    """The clients' uploads in the checkpoint of an earlier run; none without one."""
    if earlier is None:
        return {}
    content = checkpoint.load(Path(earlier), "model.earlier", allowed="a checkpoint file")
    if not content["collected"]:
        raise ValueError(f"`model.earlier` {earlier} holds no client's uploads.")
    uploads = {}
    for k, state in content["collected"].items():
        uploads[k] = {name: tensor.to(device) for name, tensor in state.items()}
    return uploads
