"""Ditto. Li et al., 2021. https://arxiv.org/abs/2012.04221

The shared network w is FedAvg's. Beside it a client trains a network v_k of its own, held near the w_t that it
received:

    w_k <- w_k - lr * grad f_k(w_k);    v_k <- v_k - lr * (grad f_k(v_k) + lam * (v_k - w_t))

Both see the same batches for as many epochs, as in the authors' code; all v_k start where w does.

Invariants: lam = 0, v_k is trained alone; w is FedAvg's whatever lam.
"""

import copy
from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer

from fedlit.bounds import check_number
from fedlit.data.client import Client
from fedlit.inputs import applied
from fedlit.losses import add_to_gradients, proximal_gradient
from fedlit.methods.base import Card, Weighting, loss_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.states import frozen, groups, trained
from fedlit.rng import Stream, derive
from fedlit.tasks import Task


class Ditto(FedAvg):
    """A shared network, and a personal one that is held near it.

    Args:
        network: Builds both networks.
        optimizer: Builds a client's optimiser from the parameters of both.
        lam: Strength of the pull towards the network that a client received; 0 trains the personal one alone. The
            authors: 0.1 to 2.
    """

    card = Card(
        paper="Li et al., 2021",
        link="https://arxiv.org/abs/2012.04221",
        travels="the network",
        stays="a personal network",
        recipes=("ditto_fashion.yaml", "ditto_cifar10.yaml"),
        use="Clients want a model of their own and a global one that is exactly FedAvg's; lam is how near. "
        "Local training trains both, which costs the time of two.",
        invariant="the global model is FedAvg's; lam = 0: the personal one is trained alone",
    )

    shared = ("network.",)

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        lam: float = 0.1,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        self.personal = copy.deepcopy(self.network)
        self.lam = check_number("model.lam", lam, least=0)
        self.personal_stream = Stream(0)

    def on_client_start(self, client: Client | None) -> None:
        self.w_t = frozen(trained(self.network))
        self.v = trained(self.personal)
        # Dropout of the personal network must not move the shared one's random numbers, or that were not FedAvg's.
        self.personal_stream = Stream(derive(torch.initial_seed(), "personal"))

    def parameters_of(self, client: Client | None) -> Iterable[dict[str, Any]]:
        return groups(self.network, self.personal)

    def forward(self, x: Any, /) -> Any:
        return applied(self.personal, x)

    def training_step(self, batch: tuple[Any, Any], batch_idx: int) -> Tensor:
        x, y = batch
        loss = loss_of(self)(applied(self.network, x), y)
        with self.personal_stream:
            personal_loss = loss_of(self)(applied(self.personal, x), y)
        self.log_dict({"train_loss": loss, "personal_loss": personal_loss})
        return loss + personal_loss

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        # grad F(v) + lam (v - w)
        add_to_gradients(self.v, proximal_gradient(self.v, self.w_t, self.lam))
