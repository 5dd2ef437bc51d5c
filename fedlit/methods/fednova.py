"""FedNova. Wang et al., 2020. https://arxiv.org/abs/2007.07481 (equations 6 to 8)

A client that takes more steps counts more in FedAvg than its number of samples. FedNova averages clients' directions,
each divided by the norm of its steps, and then goes as far as the clients did on average:

    d_i = (x - y_i) / |a_i|,    x <- x - tau_eff sum_i p_i d_i,    tau_eff = sum_i p_i |a_i|

    |a_i| = tau                                                   tau steps of SGD
    |a_i| = (tau - rho (1 - rho^tau) / (1 - rho)) / (1 - rho)     with momentum rho
    |a_i| = (1 - (1 - lr mu)^tau) / (lr mu)                       with FedProx's term mu/2 ||y - x||^2

Buffers are the plain mean. Momentum begins anew in every round (`trainer.optimizer_state: keep` would break the norm).

Invariants: equal norms are FedAvg (rounding), also with momentum; mu alone with equal norms is FedProx.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor
from torch.optim import Optimizer

from fedlit.aggregation import State, Upload
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.methods.base import Card, Weighting
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, check_sgd, for_client
from fedlit.methods.fedprox import FedProx
from fedlit.methods.states import num_steps_taken, shared_numbers
from fedlit.tasks import Task

LEAST_NORM = 1e-3  # of steps that were taken; 1, unless lr mu is above 1


class FedNova(FedProx):
    """One network for all; clients' directions count by samples, however many steps they took.

    Args:
        optimizer: Builds a client's optimiser: torch.optim.SGD, with momentum or without.
        mu: Strength of the pull towards the global model, as in FedProx; 0 is none.
        weighting: A client counts by its `examples` (the paper), or all count the same (`uniform`).
    """

    card = Card(
        paper="Wang et al., 2020",
        link="https://arxiv.org/abs/2007.07481",
        travels="the network; the norm of a client's steps up",
        recipes=("fednova_fashion.yaml", "fednova_cifar10.yaml"),
        use="Clients take different numbers of steps in a round, as with unequal numbers of samples; where "
        "they take the same, it is FedAvg.",
        invariant="equal numbers of steps are FedAvg",
    )

    shared = ("network.",)
    upload_only = ("norm",)

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        mu: float = 0.0,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, mu, weighting, client_optimizers, task)
        self.norm: Tensor
        self.register_buffer("norm", torch.zeros(1))

    def check(self, data: FederatedData) -> None:
        super().check(data)
        may_have = () if self.mu else ("momentum",)  # the paper has a norm for either, none for both
        why = "of which the norm is known" + (" beside `model.mu`" if self.mu else "")
        check_sgd(self.optimizer, self.client_optimizers, may_have, why)

    def on_client_start(self, client: Client | None) -> None:
        super().on_client_start(client)
        self.tau: Tensor | int = 0
        self.may_skip_steps = self._trainer is not None and self._trainer.precision == "16-mixed"

    def on_before_optimizer_step(self, optimizer: Optimizer) -> None:
        self.tau += num_steps_taken(optimizer) if self.may_skip_steps else 1
        super().on_before_optimizer_step(optimizer)

    def on_client_end(self, client: Client) -> None:
        settings = self.trainer.optimizers[0].param_groups[0]
        self.norm.fill_(norm_of_steps(int(self.tau), settings["momentum"], settings["lr"] * self.mu))

    def check_upload(self, client: Client, upload: State, most_steps: int) -> None:
        settings = for_client(self.optimizer, self.client_optimizers, client)([torch.zeros(1)]).param_groups[0]
        most = most_steps / (1 - settings["momentum"])
        norm = float(upload["norm"])
        if norm and not LEAST_NORM <= norm <= most:
            allowed = f"of at most {most_steps} steps must be 0 or lie between {LEAST_NORM} and {most:g}"
            raise ValueError(f"the norm {allowed}, got {norm:g}.")

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        moving = shared_numbers(self, current)
        norms: list[tuple[float, float]] = []

        def normalised() -> Iterator[Upload]:
            for upload in uploads:
                norm = float(upload.state["norm"]) or 1.0  # who took no step has not moved
                norms.append((upload.weight, norm))
                state = {name: current[name] + (upload.state[name] - current[name]) / norm for name in moving}
                yield replace(upload, state=upload.state | state)

        agreed = self.combine(normalised(), current)
        tau_eff = sum(weight * norm for weight, norm in norms) / sum(weight for weight, _ in norms)
        return agreed | {name: current[name] + tau_eff * (agreed[name] - current[name]) for name in moving}


def norm_of_steps(tau: int, rho: float = 0.0, lr_mu: float = 0.0) -> float:
    """The norm of the weights of ``tau`` gradients in a client's update, in units of lr.

    Example:
        >>> norm_of_steps(3), norm_of_steps(3, rho=0.5), norm_of_steps(3, lr_mu=0.5)
        (3.0, 4.25, 1.75)
    """
    if rho:
        return (tau - rho * (1 - rho**tau) / (1 - rho)) / (1 - rho)
    if lr_mu:
        return (1 - (1 - lr_mu) ** tau) / lr_mu
    return float(tau)
