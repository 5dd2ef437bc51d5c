"""FedDyn. Acar et al., 2021. https://arxiv.org/abs/2111.04263 (algorithm 1)

Every client's loss is corrected in every round so that the clients' optima and the global one agree in the end. A
client has h_i, the server h, all zero at first:

    y_i = argmin_y f_i(y) - <h_i, y> + alpha/2 ||y - x||^2,    h_i <- h_i - alpha (y_i - x)
    h  <- h - alpha/N sum_S (y_i - x),                         x  <- mean_S y_i - h / alpha

N clients may take part, those in S do; local epochs stand for the argmin, every client counts the same, buffers are the
mean. We follow the paper; the authors' code divides alpha by a client's share of the samples, and clips gradients. With
h_i = 0 a client trains as in FedProx, where y is w, x is w_t and alpha is mu.

Invariants: h is the mean of all N h_i after every round, whichever clients took part (rounding); in the first round the
uploads are FedProx's with mu = alpha; where h = 0 and every y_i = x, nothing moves.
"""

from collections.abc import Iterable, Mapping

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor

from fedlit.aggregation import State, Upload, watched
from fedlit.bounds import check_positive
from fedlit.data.client import Client
from fedlit.methods.base import Card
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedprox import FedProx
from fedlit.methods.states import Vectors, shared_numbers, trained
from fedlit.tasks import Task


class FedDyn(FedProx):
    """One network for all; a client's loss is corrected by how far it has moved in all rounds.

    Args:
        alpha: Strength of the pull and of its memory; the paper has 0.01 to 0.1.
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

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        alpha: float = 0.1,
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        check_positive("model.alpha", alpha)
        super().__init__(network, optimizer, alpha, "uniform", client_optimizers, task)
        self.alpha = alpha
        self.h = Vectors(trained(self.network))
        self.h_i = Vectors(trained(self.network))

    def gradient_of_term(self) -> list[Tensor]:
        gradient = super().gradient_of_term()
        torch._foreach_sub_(gradient, list(self.h_i))  # alpha (y - x) - h_i
        return gradient

    def on_client_end(self, client: Client) -> None:
        moved = zip(self.h_i, self.w, self.w_t, strict=True)
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
