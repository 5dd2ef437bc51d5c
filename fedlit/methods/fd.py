"""Federated distillation. Jeong et al., 2018. https://arxiv.org/abs/1811.11479 (algorithm 1)

Clients share no weights, only their mean output for each label. F is a softmax of logits, which the paper calls a logit
vector:

    F_i^l = mean of F(x) over the samples of label l that client i trains on, while it trains
    Fhat_i^l = mean of F_j^l over the others, j != i, that hold label l
    loss = CE(p, y) + gamma * CE(p, Fhat_i^y)                   where there is an Fhat_i^y

The server sends the sum over all clients of the last round and their number; a client that was among them subtracts its
own part, and so has the mean of the others.

Invariants: gamma = 0 is local training; of two clients, each learns from the other alone.
"""

from collections.abc import Iterable, Mapping

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedlit.aggregation import State, Upload, check_class_counts, class_totals
from fedlit.bounds import check_number
from fedlit.data.client import Client
from fedlit.heads import last_linear
from fedlit.losses import class_sums, soft_cross_entropy
from fedlit.methods.base import Card, loss_of
from fedlit.methods.factories import ClientNetworks, ClientOptimizers, NetworkFactory
from fedlit.methods.local import LocalOnly
from fedlit.methods.stage import Stage


class FD(LocalOnly):
    """A network per client; each learns the others' mean output for a label.

    Args:
        network: Builds the network of a client; it ends in a linear layer.
        optimizer: Builds the optimiser from the parameters; its state is kept between rounds.
        gamma: Weight of the others' mean output; 0 is local training.
    """

    card = Card(
        paper="Jeong et al., 2018",
        link="https://arxiv.org/abs/1811.11479",
        travels="mean outputs per label, and counts",
        stays="the network, and its last upload",
        recipes=("fd_fashion.yaml", "fd_cifar10.yaml"),
        use="Clients have networks of their own and next to nothing to send: a vector for each label. They learn "
        "from each other where several hold a label; there is no global model.",
        invariant="gamma = 0 is local training",
        tasks=("classification",),
    )

    download_only = ("total", "holders", "number")
    upload_only = ("means", "counts")
    total: Tensor
    holders: Tensor
    number: Tensor
    means: Tensor
    counts: Tensor
    own_means: Tensor
    own_counts: Tensor
    own_number: Tensor

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        gamma: float = 0.1,
        client_networks: ClientNetworks = None,
        client_optimizers: ClientOptimizers = None,
    ) -> None:
        super().__init__(network, optimizer, client_networks, client_optimizers)
        self.gamma = check_number("model.gamma", gamma, least=0)
        classes = last_linear(self.network)[1].out_features
        for name in ("total", "means", "own_means"):
            self.register_buffer(name, torch.zeros(classes, classes))
        for name in ("holders", "counts", "own_counts"):
            self.register_buffer(name, torch.zeros(classes, dtype=torch.int64))
        for name in ("number", "own_number"):  # of the mean that is sent down
            self.register_buffer(name, torch.zeros(1, dtype=torch.int64))

    def configure_stages(self) -> list[Stage]:
        return [Stage("federate")]

    def on_client_start(self, client: Client | None) -> None:
        own_part = (self.own_number == self.number) * self.own_counts.sign()  # 0 if it sent nothing in the last round
        self.others = self.holders - own_part
        self.teacher = (self.total - own_part[:, None] * self.own_means) / self.others.clamp_min(1)[:, None]

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        z = self.network(x)
        sums, counts = class_sums(z.detach().softmax(dim=1), y, len(self.counts))
        self.means += sums
        self.counts += counts
        loss = loss_of(self)(z, y)
        self.log("train_loss", loss)
        taught = self.others[y] > 0
        if self.gamma == 0 or not taught.any():
            return loss
        distance = soft_cross_entropy(z[taught], self.teacher[y[taught]]) * taught.float().mean()
        self.log("distillation", distance)
        return loss + self.gamma * distance

    def on_client_end(self, client: Client) -> None:
        self.means /= self.counts.clamp_min(1)[:, None]
        self.own_means.copy_(self.means)
        self.own_counts.copy_(self.counts)
        self.own_number.copy_(self.number + 1)

    def check_upload(self, client: Client, upload: State, most_steps: int) -> None:
        check_class_counts(upload["counts"], most=most_steps * client.num_opted_in)

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        total, holders = class_totals(uploads, "uniform")
        number = current["number"] + 1
        return {"total": total.to(current["total"]), "holders": holders.to(number), "number": number}
