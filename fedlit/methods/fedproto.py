"""FedProto. Tan et al., 2022. https://arxiv.org/abs/2105.00243 (algorithm 1)

Clients share no weights, only the mean feature of each class, its prototype. C_i^j is client i's of class j:

    loss = CE(p, y) + lam / (N D) * sum_n ||f_i(x_n) - Cbar^{y_n}||^2    over a batch of N samples with D features
    C_i^j = mean of f_i(x) over own samples of class j                   after local training, in evaluation mode
    Cbar^j = sum_i |D_i^j| C_i^j / sum_i |D_i^j|                         over clients of the round that hold class j

f_i is a network up to its last linear layer: networks may differ in all but the width there. A class keeps its last
prototype in a round without it, and a sample whose class has none no term.

The loss is that of the authors' code, where `lam` means the same for any number of features. The paper's, `distance:
sum`, is CE + lam * sum_j ||C_i^j - Cbar^j||^2 over the classes of a batch, with C_i^j of the batch. The rest is the
paper's, but for the 1 / |N_j| of its equation 6, which would shrink prototypes; the code has `weighting: uniform`, and
C_i^j of the features that training saw.

Invariants: lam = 0 is local training; a class that nobody holds has no prototype, and no term.
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedlit.aggregation import State, Upload, check_class_counts, class_totals
from fedlit.bounds import check_choice, check_number
from fedlit.data.client import Client
from fedlit.heads import last_linear, with_features
from fedlit.losses import PrototypeReduction, prototype_distance
from fedlit.methods.base import Card, Weighting, loss_of
from fedlit.methods.factories import ClientNetworks, ClientOptimizers, NetworkFactory, draws_initial_values
from fedlit.methods.local import LocalOnly
from fedlit.methods.stage import Stage
from fedlit.methods.states import class_means
from fedlit.modes import evaluating

Predict = Literal["classifier", "prototype"]


class FedProto(LocalOnly):
    """A network per client; they agree on what features of a class should be.

    Args:
        network: Builds the network of a client; it ends in a linear layer.
        optimizer: Builds the optimiser from the parameters; its state is kept between rounds.
        lam: Strength of the pull of features towards prototypes; 0 is local training. The authors: 1, for CIFAR-10 0.1.
        predict: By the network's `classifier`, or the class of the nearest `prototype`.
        weighting: Prototypes count by `examples` of their class (the paper), or all the same (`uniform`, the code).
        distance: What `lam` multiplies: the `mean` square over samples and features (the code), or the paper's `sum`.
    """

    card = Card(
        paper="Tan et al., 2022",
        link="https://arxiv.org/abs/2105.00243",
        travels="class means of features, and counts up",
        stays="the network",
        recipes=("fedproto_fashion.yaml", "fedproto_cifar10.yaml"),
        use="Clients have networks of their own and little to send: class means of features in place of "
        "weights. Clients must share classes; there is no global model.",
        invariant="lam = 0 is local training",
        tasks=("classification",),
    )

    download_only = ("prototypes", "known")
    upload_only = ("means", "counts")
    prototypes: Tensor
    known: Tensor
    means: Tensor
    counts: Tensor

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        lam: float = 1.0,
        predict: Predict = "classifier",
        weighting: Weighting = "examples",
        client_networks: ClientNetworks = None,
        client_optimizers: ClientOptimizers = None,
        distance: PrototypeReduction = "mean",
    ) -> None:
        super().__init__(network, optimizer, client_networks, client_optimizers)
        check_choice("model.predict", predict, Predict)
        check_choice("model.distance", distance, PrototypeReduction)
        self.lam = check_number("model.lam", lam, least=0)
        self.distance = distance
        self.predict = predict
        self.weighting = weighting
        _, last = last_linear(self.network)
        features = torch.zeros(last.out_features, last.in_features)
        self.register_buffer("prototypes", features)
        self.register_buffer("known", torch.zeros(last.out_features, dtype=torch.bool))
        self.register_buffer("means", features.clone())
        self.register_buffer("counts", torch.zeros(last.out_features, dtype=torch.int64))

    def configure_stages(self) -> list[Stage]:
        return [Stage("federate")]

    @draws_initial_values("client_networks")
    def configure_client(self, client: Client) -> None:
        super().configure_client(client)
        _, last = last_linear(self.network)
        wanted = self.prototypes.shape[1]
        if last.in_features != wanted:
            raise ValueError(
                f"`model.client_networks`: the last linear layer of client {client.id} must take {wanted} features, "
                f"got {last.in_features}."
            )

    def features(self, x: Tensor) -> Tensor:
        return with_features(self.network, x)[0]

    def forward(self, x: Tensor) -> Tensor:
        if self.predict == "classifier" or not self.known.any():
            return self.network(x)
        nearness = -torch.cdist(self.features(x), self.prototypes).square()
        return nearness.masked_fill(~self.known, -torch.inf)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        features, z = with_features(self.network, x)
        loss = loss_of(self)(z, y)
        self.log("train_loss", loss)
        if self.lam == 0:
            return loss
        distance = prototype_distance(features, y, self.prototypes, self.known, self.distance)
        self.log("distance", distance)
        return loss + self.lam * distance

    def on_client_end(self, client: Client) -> None:
        with evaluating(self.network):
            means, counts = class_means(self.features, client, like=self.means, num_classes=len(self.counts))
        self.means.copy_(means)
        self.counts.copy_(counts)

    def check_upload(self, client: Client, upload: State, most_steps: int) -> None:
        check_class_counts(upload["counts"], most=client.num_opted_in)

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        total, weight = class_totals(uploads, self.weighting)
        held = (weight > 0).to(current["known"])
        means = (total / weight.clamp_min(1)[:, None]).to(current["prototypes"])
        prototypes = torch.where(held[:, None], means, current["prototypes"])
        return {"prototypes": prototypes, "known": current["known"] | held}
