"""pFedMe: personalised federated learning with Moreau envelopes. Dinh et al., 2020. https://arxiv.org/abs/2006.08848

A client's personal network theta_i minimises its loss near w_i; w_i follows, batch by batch:

    theta_i <- theta_i - lr * (grad f_i(theta_i) + lam * (theta_i - w_i))    K times on the same batch
    w_i     <- w_i - eta * lam * (w_i - theta_i)
    w       <- (1 - beta) w + beta * mean_i w_i                              on the server

As in the authors' code theta_i starts from the w that a client receives and goes on from batch to batch; that code also
adds 0.001 theta_i to its gradient (here: the optimiser's `weight_decay`) and weighs by examples. As w is never run in
training, its statistics of BatchNorm are theta_i's.

Invariants: lam = 0, w does not move; beta = 0, the server's w does not.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer

from fedlit.aggregation import State, Upload
from fedlit.bounds import check_count, check_number
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.inputs import applied
from fedlit.losses import add_to_gradients, proximal_gradient
from fedlit.methods.base import Card, Weighting, loss_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, check_no_line_search
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.states import copy_into, groups, trained
from fedlit.tasks import Task


class PFedMe(FedAvg):
    """A personal network near the shared one, which follows it.

    Args:
        network: Builds both networks.
        optimizer: Builds the optimiser of the personal network; the paper's is plain SGD.
        lam: Strength of the pull between both; 0 leaves the shared one where it is.
        eta: Learning rate of the shared network, whose step is eta * lam of the way.
        inner_steps: K, steps of the personal network on each batch.
        beta: How far the server goes towards the mean; 1 is all the way, 0 stays.
        weighting: A client counts by its `examples` (the authors' code), or all count the same (`uniform`, the paper).
    """

    card = Card(
        paper="Dinh et al., 2020",
        link="https://arxiv.org/abs/2006.08848",
        travels="the network",
        stays="a personal network",
        recipes=("pfedme_fashion.yaml", "pfedme_cifar10.yaml"),
        use="Clients want a model of their own near a global one, and time is no matter: every batch is K "
        "steps. lam and two rates must be tuned together.",
        invariant="lam = 0: the global model does not move",
    )

    shared = ("network.",)

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        lam: float = 15.0,
        eta: float = 0.005,
        inner_steps: int = 5,
        beta: float = 1.0,
        weighting: Weighting = "uniform",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.personal = copy.deepcopy(self.network)
        self.lam = check_number("model.lam", lam, least=0)
        self.eta = check_number("model.eta", eta, least=0)
        self.K = check_count("model.inner_steps", inner_steps)
        self.beta = check_number("model.beta", beta, least=0)

    def check(self, data: FederatedData) -> None:
        super().check(data)
        check_no_line_search(self.optimizer, self.client_optimizers)

    def on_client_start(self, client: Client | None) -> None:
        copy_into(self.personal.state_dict(keep_vars=True), self.network.state_dict())
        self.w = trained(self.network)
        self.theta = trained(self.personal)

    def on_client_end(self, client: Client) -> None:
        copy_into(dict(self.network.named_buffers()), dict(self.personal.named_buffers()))

    def parameters_of(self, client: Client | None) -> Iterable[dict[str, Any]]:
        return groups(self.personal)

    def forward(self, x: Any, /) -> Any:
        return applied(self.personal, x)

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        x, y = batch
        loss = loss_of(self)(applied(self.personal, x), y)
        self.log("train_loss", loss)
        return loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        # grad f(theta) + lam (theta - w)
        add_to_gradients(self.theta, proximal_gradient(self.theta, self.w, self.lam))

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for _ in range(self.K):
            optimizer.step(closure=optimizer_closure)
        with torch.no_grad():
            torch._foreach_lerp_(self.w, self.theta, self.eta * self.lam)

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        agreed = self.combine(uploads, current)
        if self.beta == 1:
            return agreed
        floating = {name: mean for name, mean in agreed.items() if mean.is_floating_point()}
        return agreed | {name: torch.lerp(current[name], mean, self.beta) for name, mean in floating.items()}
