"""Adaptive personalised federated learning. Deng et al., 2020. https://arxiv.org/abs/2003.13461

A client mixes the shared network w with a network v_i of its own and predicts with the mixture:

    vbar_i  = alpha_i v_i + (1 - alpha_i) w_i
    w_i     <- w_i - lr * grad f_i(w_i)
    v_i     <- v_i - lr * grad_v f_i(vbar_i)
    alpha_i <- clip(alpha_i - lr * <v_i - w_i, grad f_i(vbar_i)>, 0, 1),    in the first step of a round

As in the paper, weights are mixed, all three steps start from the values before them, and clients count alike. The
authors' code mixes outputs, steps w_i first, and adds 0.02 alpha_i to the gradient of alpha_i. All v_i start where w
does; statistics of BatchNorm in the mixture are v_i's. The alpha_i after local training is recorded as `alpha`.

Invariants: alpha held at 0, the mixture is w; held at 1, it is v_i, trained alone; w is FedAvg's whatever alpha.
"""

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.bounds import check_number, check_share
from fedlit.data.client import Client
from fedlit.heads import Mixed
from fedlit.inputs import applied
from fedlit.methods.base import Card, Weighting, loss_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.states import groups
from fedlit.rng import Stream, derive
from fedlit.tasks import Task


class APFL(FedAvg):
    """A shared and a personal network, mixed by a weight that every client finds for itself.

    Args:
        network: Builds both networks.
        optimizer: Builds a client's optimiser from the parameters of both.
        alpha: Weight in [0, 1] of the personal network that clients start with; 0 is the shared one.
        alpha_lr: Learning rate of alpha; 0 holds it, none is the optimiser's (the paper).
    """

    card = Card(
        paper="Deng et al., 2020",
        link="https://arxiv.org/abs/2003.13461",
        travels="the network",
        stays="a personal network and its weight in the mixture",
        recipes=("apfl_fashion.yaml", "apfl_cifar10.yaml"),
        use="Clients differ in how much they are like the others: each finds its share of the global model by "
        "itself. A step costs two or three of FedAvg's.",
        invariant="alpha held at 0: the mixture is the global model, FedAvg's with uniform weights; at 1: a network "
        "trained alone",
    )

    network: Mixed
    shared = ("network.w.",)

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        alpha: float = 0.5,
        alpha_lr: float | None = None,
        weighting: Weighting = "uniform",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.network = Mixed(self.network, check_share("model.alpha", alpha))
        self.alpha_lr = None if alpha_lr is None else check_number("model.alpha_lr", alpha_lr, least=0)
        self.personal_stream = Stream(0)

    def on_client_start(self, client: Client | None) -> None:
        # Dropout of the mixture must not move the shared network's random numbers, or that were not FedAvg's.
        self.personal_stream = Stream(derive(torch.initial_seed(), "personal"))

    def on_client_end(self, client: Client) -> None:
        self.log("alpha", self.network.alpha)

    def parameters_of(self, client: Client | None) -> Iterable[dict[str, Any]]:
        return groups(self.network.w, self.network.v)

    def global_model(self) -> nn.Module:
        return self.network.w

    def forward(self, x: Any, /) -> Any:
        return self.network(x)

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        x, y = batch
        loss = loss_of(self)(applied(self.network.w, x), y)
        adapts = self.global_step == 0 and self.alpha_lr != 0
        alpha = self.network.alpha.clone().requires_grad_(adapts)
        with self.personal_stream:
            mixture_loss = loss_of(self)(self.network(x, alpha), y)
        if adapts:
            (gradient,) = torch.autograd.grad(mixture_loss, alpha, retain_graph=True)
            lr = self.trainer.optimizers[0].param_groups[0]["lr"] if self.alpha_lr is None else self.alpha_lr
            self.network.alpha.sub_(lr * gradient).clamp_(0, 1)
        self.log_dict({"train_loss": loss, "mixture_loss": mixture_loss})
        return loss + mixture_loss
