"""FedDyn. Acar et al., 2021. https://arxiv.org/abs/2111.04263 (algorithm 1)

Every client's loss is bent in every round so that the clients' optima and the global one come to agree. A client has
h_i, the server h, all zero at first:

    y_i = argmin_y f_i(y) - <h_i, y> + alpha/2 ||y - x||^2,    h_i <- h_i - alpha (y_i - x)
    h  <- h - alpha/N sum_S (y_i - x),                         x  <- mean_S y_i - h / alpha

N clients may take part, those in S do; local epochs stand for the argmin, every client counts the same, buffers are the
mean. We follow the paper; the authors' code divides alpha by a client's share of the samples, and clips gradients.

Invariants: h is the mean of all N h_i after every round, whoever took part (rounding); in the first round the uploads
are FedProx's with mu = alpha; where h = 0 and every y_i = x, nothing moves.
"""

from collections.abc import Iterable, Mapping

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer

from fedlit.aggregation import State, Upload, watched
from fedlit.bounds import check_positive
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.losses import add_to_gradients, proximal_gradient
from fedlit.methods.base import Card, FederatedModule
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, build, check_no_line_search
from fedlit.methods.states import Vectors, frozen, shared_numbers, trained
from fedlit.tasks import Task


class FedDyn(FederatedModule):
    """One network for all; a client's loss is corrected by how far it has moved in all rounds.

    Args:
        network: Builds the network.
        optimizer: Builds a client's optimiser from the parameters.
        alpha: Strength of the pull and of its memory; the paper has 0.01 to 0.1.
        client_optimizers: Another optimiser for some clients: a list with one for each, or a mapping from client id.
        task: What outputs are for, of fedlit.tasks; classification by default.
    """

    card = Card(
        paper="Acar et al., 2021",
        link="https://arxiv.org/abs/2111.04263",
        travels="the network",
        stays="a gradient h_i",
        recipes=("feddyn_fashion.yaml", "feddyn_cifar10.yaml"),
        use="One model for all, where clients' optima disagree and they take part often. alpha must be tuned; "
        "a client keeps as much as the model holds.",
        invariant="h is the mean of all h_i; the first uploads are FedProx's with mu = alpha",
    )

    shared = ("network.",)
    server_only = ("h.",)
    weighting = "uniform"

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        alpha: float = 0.1,
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(optimizer, client_optimizers, task)
        self.network = build(network, "model.network")
        self.alpha = check_positive("model.alpha", alpha)
        self.h = Vectors(trained(self.network))
        self.h_i = Vectors(trained(self.network))

    def check(self, data: FederatedData) -> None:
        super().check(data)
        check_no_line_search(self.optimizer, self.client_optimizers)

    def on_client_start(self, client: Client | None) -> None:
        self.y = trained(self.network)
        self.x = frozen(self.y)

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        bend = proximal_gradient(self.y, self.x, self.alpha)
        torch._foreach_sub_(bend, list(self.h_i))  # alpha (y - x) - h_i
        add_to_gradients(self.y, bend)

    def on_client_end(self, client: Client) -> None:
        moved = zip(self.h_i, self.y, self.x, strict=True)
        self.h_i.put([h_i - self.alpha * (y.detach() - x) for h_i, y, x in moved])

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        seen: list[int] = []
        agreed = self.combine(watched(uploads, lambda upload: seen.append(upload.client)), current)
        share = self.alpha * len(seen) / self.num_clients
        new: State = {}
        for name, number in shared_numbers(self, current).items():
            h = current[f"h.{number}"] - share * (agreed[name] - current[name])
            new |= {f"h.{number}": h, name: agreed[name] - h / self.alpha}
        return agreed | new
