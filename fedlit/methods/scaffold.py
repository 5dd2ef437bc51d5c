"""SCAFFOLD. Karimireddy et al., 2020. https://arxiv.org/abs/1910.06378 (algorithm 1)

A client corrects each of its steps by where the others would go. The server has x and a control variate c, a client
its own c_i, all zero at first:

    y   <- y - lr (g_i(y) - c_i + c)                K steps from y = x
    c_i+ = g_i(x)                                   option I: the gradient at x over all own samples
    c_i+ = c_i - c + (x - y) / (K lr)               option II
    x   <- x + lr_g mean_S (y_i - x),    c <- c + |S|/N mean_S (c_i+ - c_i)

N clients may take part, those in S do. Option I takes g_i(x) in evaluation mode. Weight decay is a part of g_i.

Invariants: c and c_i held at 0 are FedAvg with uniform weights; where all take part, c is the mean of all c_i after
every round, and one client is a plain loop of SGD (both but for rounding).
"""

from collections.abc import Iterable, Mapping
from typing import Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer

from fedlit.aggregation import State, Upload, watched
from fedlit.aggregation.uploads import wide
from fedlit.bounds import check_choice, check_positive
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.losses import add_to_gradients
from fedlit.methods.base import Card, Weighting, loss_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, check_sgd
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.states import Vectors, frozen, mean_gradient, num_steps_taken, shared_numbers, trained
from fedlit.tasks import Task

Option = Literal["I", "II"]


class SCAFFOLD(FedAvg):
    """One network for all; control variates keep clients from drifting apart.

    Args:
        optimizer: Builds a client's optimiser: torch.optim.SGD without momentum.
        option: How c_i is renewed: `II` from the steps taken, `I` by one more pass over the samples.
        lr_g: How far the server goes towards the mean; 1 is there.
        weighting: A client counts by its `examples`, or all count the same (`uniform`, the paper).
    """

    card = Card(
        paper="Karimireddy et al., 2020",
        link="https://arxiv.org/abs/1910.06378",
        travels="the network; c down, the change of c_i up",
        stays="a control variate c_i",
        recipes=("scaffold_fashion.yaml", "scaffold_cifar10.yaml"),
        use="One model for all, many local steps of plain SGD, clients that take part often. It sends twice "
        "what FedAvg does, and c_i grows stale with who is seldom drawn.",
        invariant="c and c_i held at 0 are FedAvg with uniform weights; c is the mean of all c_i",
    )

    shared = ("network.",)
    download_only = ("c.",)
    upload_only = ("change.",)

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        option: Option = "II",
        lr_g: float = 1.0,
        weighting: Weighting = "uniform",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        check_choice("model.option", option, Option)
        self.option = option
        self.lr_g = check_positive("model.lr_g", lr_g)
        self.c = Vectors(trained(self.network))
        self.c_i = Vectors(trained(self.network))
        self.change = Vectors(trained(self.network))

    def check(self, data: FederatedData) -> None:
        super().check(data)
        check_sgd(self.optimizer, self.client_optimizers, may_have=(), why="whose steps are lr times a gradient")

    def on_client_start(self, client: Client | None) -> None:
        self.y = trained(self.network)
        self.x = frozen(self.y)
        self.drift = list(torch._foreach_sub(list(self.c), list(self.c_i)))
        self.K: Tensor | int = 0
        self.may_skip_steps = self._trainer is not None and self._trainer.precision == "16-mixed"
        if self.option == "I" and client is not None:
            self.renewed = mean_gradient(self.network, client, like=self.x[0], loss=loss_of(self))

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.K += num_steps_taken(optimizer) if self.may_skip_steps else 1
        add_to_gradients(self.y, self.drift)  # g + c - c_i

    @torch.no_grad()
    def on_client_end(self, client: Client) -> None:
        if self.K == 0:
            return
        if self.option == "II":
            self.renewed = list(torch._foreach_sub(self.x, self.y))
            torch._foreach_div_(self.renewed, int(self.K) * self.trainer.optimizers[0].param_groups[0]["lr"])
            torch._foreach_sub_(self.renewed, self.drift)
        self.change.put(torch._foreach_sub(self.renewed, list(self.c_i)))
        self.c_i.put(self.renewed)

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        c = {name: wide(tensor).clone() for name, tensor in current.items() if name.startswith("c.")}

        def add(upload: Upload) -> None:
            for name, tensor in c.items():
                tensor += wide(upload.state[name.replace("c.", "change.")]) / self.num_clients

        agreed = self.combine(watched(uploads, add), current)
        if self.lr_g != 1:
            names = shared_numbers(self, current)
            agreed |= {name: current[name] + self.lr_g * (agreed[name] - current[name]) for name in names}
        return agreed | {name: tensor.to(current[name]) for name, tensor in c.items()}
