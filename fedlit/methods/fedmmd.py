"""FedMMD and its two-stream L2 baseline. Yao et al., 2018/2019. https://arxiv.org/abs/1908.05891

A client keeps a frozen copy G of the global model, the global stream, beside the local stream L that it trains, and
pays for the distance between what both give for the same images:

    loss = CE(L(x), y) + lam * D(G(x), L(x)),    D = max(MMD^2, 1e-4)  or  1/2 * sum (G(x) - L(x))^2

MMD^2 is the biased estimate with the authors' 19 fixed kernel widths, on logits; see fedlit.losses.mmd. Only L is sent.
A variant overrides `compute_distance` (D), or `stream` to compare something else.

Invariant: lam = 0 is FedAvg. At the start of a round L = G: no distance, no gradient of it.
"""

import copy
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.bounds import check_choice, check_number
from fedlit.data.client import Client
from fedlit.inputs import applied
from fedlit.losses import half_squared_error, mmd
from fedlit.methods.base import Card, Weighting, loss_of, task_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory
from fedlit.methods.fedavg import FedAvg
from fedlit.methods.states import record
from fedlit.tasks import Task

FLOOR = 1e-4  # below it the authors' code returns the floor, which has no gradient
Distance = Literal["mmd", "l2"]
Kernel = Literal["fixed", "adaptive"]
Compare = Literal["logits", "features"]


class FedMMD(FedAvg):
    """One network for all; a client pays for outputs that differ from the global model's.

    Args:
        lam: Strength of the distance; 0 is FedAvg. The paper: 0.1; for l2 on MNIST 0.001.
        distance: `mmd`, or `l2`, the baseline: half the sum of squares over batch and classes.
        kernel: Widths of the mmd: the authors' 19 `fixed` ones, or five that are `adaptive` to the batch.
        compare: Take the distance on the `logits` (the authors), or on the `features` before the head.
        record: Compute the global stream once a round where its inputs are the same in every epoch; the weights are the
            same.
        weighting: A client counts by its `examples`, or all count the same (`uniform`, as in the authors' code).
    """

    card = Card(
        paper="Yao et al., 2018",
        link="https://arxiv.org/abs/1908.05891",
        travels="the network",
        recipes=("fedmmd_fashion.yaml", "fedmmd_cifar10.yaml"),
        use="One model for all, held near in its outputs rather than in its weights. Every batch also passes "
        "the frozen global network; compare it with FedProx.",
        invariant="lam = 0 is FedAvg with uniform weights",
    )

    wants_index = True

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        lam: float = 0.1,
        distance: Distance = "mmd",
        kernel: Kernel = "fixed",
        compare: Compare = "logits",
        record: bool = True,
        weighting: Weighting = "uniform",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
    ) -> None:
        super().__init__(network, optimizer, weighting, client_optimizers, task)
        check_choice("model.distance", distance, Distance)
        check_choice("model.kernel", kernel, Kernel)
        check_choice("model.compare", compare, Compare)
        if compare == "features" and not hasattr(self.network, "extractor"):
            raise ValueError("`model.compare: features` needs a network with an `extractor` and a `head`.")
        self.lam = check_number("model.lam", lam, least=0)
        self.distance = distance
        self.kernel = kernel
        self.compare = compare
        self.record = record
        self._global: list[nn.Module] = []  # in a list, so that it is no part of the state
        self._recorded: Tensor | None = None

    def on_client_start(self, client: Client | None) -> None:
        if self.lam == 0:
            return
        self._global = [copy.deepcopy(self.network).requires_grad_(False).eval()]
        self._recorded = None
        if self.record:
            self._recorded = record(self._global_stream, client, next(self.parameters()))

    def on_client_end(self, client: Client) -> None:
        self._global = []
        self._recorded = None

    def stream(self, network: Any, x: Any) -> tuple[Tensor, Any]:
        """The part of a stream that is compared, ``[N, D]``, and the outputs of its network."""
        if self.compare == "logits":
            z = applied(network, x)
            return task_of(self).output(z).flatten(1), z
        features = applied(network.extractor, x)
        return features.flatten(1), network.head(features)

    def compute_distance(self, received: Tensor, local: Tensor) -> Tensor:
        """D of the global stream, a constant, and the local one, both ``[N, D]``."""
        if self.distance == "l2":
            return half_squared_error(local, received)
        return mmd(received, local, self.kernel).clamp_min(FLOOR)

    def training_step(self, batch: tuple[Any, ...], batch_idx: int) -> Tensor:
        x, y, *index = batch
        local, z = self.stream(self.network, x)
        loss = loss_of(self)(z, y)
        self.log("train_loss", loss)
        if not self._global:  # lam = 0
            return loss
        received = self._global_stream(x) if self._recorded is None else self._recorded[index[0]]
        distance = self.compute_distance(received, local)
        self.log(self.distance, distance)
        return loss + self.lam * distance

    @torch.no_grad()
    def _global_stream(self, x: Any) -> Tensor:
        return self.stream(self._global[0], x)[0]
