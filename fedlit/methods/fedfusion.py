"""FedFusion. Yao et al., 2019. https://arxiv.org/abs/1908.05891 (sections 3.2 and 3.3)

A client fuses the features of its own extractor E_l with those of a frozen copy E_g of the one it received:

    logits = C(F(E_l(x), E_g(x)))
    single, multi:  F = lam * E_g + (1 - lam) * E_l,   one lam, or one per channel; starts at 0, unconstrained
    conv:           F = W * (E_g || E_l) + b,          a 1x1 convolution from 2c to c channels

It trains and sends E_l, F and C. The server averages them and smooths lam:
lam <- ema * lam + (1 - ema) * mean_k lam_k. A client's lam after local training is recorded as `lam`. A variant
overrides `build_operator`.

Invariants: lam held at 0 is FedAvg, and so is `single` or `multi` fused with itself; while E_l = E_g the
gradient of lam is 0; E_g is in no upload.
"""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.aggregation import State, Upload
from fedlit.bounds import check_choice, check_number
from fedlit.data.client import Client
from fedlit.inputs import applied
from fedlit.methods.base import Card, FederatedModule, Weighting, loss_of
from fedlit.methods.factories import ClientOptimizers, NetworkFactory, build
from fedlit.methods.states import record
from fedlit.tasks import Task

LAM = "network.fusion.lam"
EXTRACTOR = "network.extractor."
REFERENCE = "network.reference."
OperatorName = Literal["conv", "multi", "single"]
FuseWith = Literal["received", "own"]


class Operator(nn.Module):
    """The operator F on feature maps ``[N, c, H, W]``; base of your own."""

    def forward(self, local: Tensor, received: Tensor) -> Tensor:
        """The fused features, in the shape of the local ones.

        Args:
            local: E_l, of the client's own extractor.
            received: E_g, of the extractor that it received.
        """
        raise NotImplementedError

    def summary(self) -> dict[str, float]:
        """Numbers that are recorded after local training."""
        return {}


class Weighted(Operator):
    """F = lam * E_g + (1 - lam) * E_l, with one weight (`single`) or one for each channel (`multi`).

    Args:
        weights: How many.

    Example:
        >>> Weighted(1).summary()
        {'lam': 0.0}
    """

    def __init__(self, weights: int) -> None:
        super().__init__()
        self.lam = nn.Parameter(torch.zeros(1, weights, 1, 1))

    def forward(self, local: Tensor, received: Tensor) -> Tensor:
        return local + self.lam * (received - local)  # in this form exactly E_l where both agree

    @torch.no_grad()
    def summary(self) -> dict[str, float]:
        """Mean and spread of lam."""
        found = {"lam": float(self.lam.mean())}
        if self.lam.numel() > 1:
            found["lam_sd"] = float(self.lam.std(correction=0))
        return found


class Convolution(Operator):
    """F = W * (E_g || E_l) + b, a 1x1 convolution (`conv`).

    Args:
        channels: c, of each extractor's features.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2 * channels, channels, kernel_size=1)

    def forward(self, local: Tensor, received: Tensor) -> Tensor:
        return self.conv(torch.cat([received, local], dim=1))

    @torch.no_grad()
    def summary(self) -> dict[str, float]:
        """The share of E_g in the absolute weights."""
        size = self.conv.weight.abs()
        received, _ = size.chunk(2, dim=1)
        return {"frozen_share": float(received.sum() / size.sum())}


class FusedNetwork(nn.Module):
    """Extractor, its frozen reference, operator and head as one network.

    Args:
        extractor: E_l.
        head: C.
        reference: E_g.
        fusion: F.
        sees_itself: Take E_l for E_g.
    """

    def __init__(
        self, extractor: nn.Module, head: nn.Module, reference: nn.Module, fusion: Operator, sees_itself: bool = False
    ) -> None:
        super().__init__()
        self.sees_itself = sees_itself
        self.extractor = extractor
        self.head = head
        self.fusion = fusion
        self.reference = reference.requires_grad_(False)

    def forward(self, x: Any, reference_features: Tensor | None = None) -> Any:
        features = applied(self.extractor, x)
        if self.sees_itself:
            reference_features = features
        elif reference_features is None:
            reference_features = applied(self.reference, x)
        return self.head(self.fusion(features, reference_features))

    def train(self, mode: bool = True) -> "FusedNetwork":
        super().train(mode)
        self.reference.eval()  # frozen, statistics and all
        return self


class FedFusion(FederatedModule):
    """One network for all; a client also uses the features of the global model that it received.

    Args:
        network: Builds a network with an `extractor` of feature maps and a `head`.
        operator: `conv`, `multi` (a weight per channel) or `single` (one weight).
        ema: How much of the old lam the server keeps, in [0, 1).
        eval_reference: Evaluate with the `previous` round's extractor (the authors), or with it`self`: no effect then.
        record: Compute frozen features once a round where inputs are the same in every epoch; the weights are the same.
        weighting: A client counts by its `examples`, or all count the same (`uniform`, as in the authors' code).
        train_operator: Whether F trains. False, a control, holds it at its first value: lam at 0, which is FedAvg, or
            the convolution as it was drawn.
        fuse_with: E_g is the extractor that was `received`, or the client's `own` E_l, a control: F's parameters, and
            nothing of the global model; `single` and `multi` are FedAvg then.
    """

    card = Card(
        paper="Yao et al., 2019",
        link="https://arxiv.org/abs/1908.05891",
        travels="extractor, fusion and head",
        recipes=("fedfusion_fashion.yaml", "fedfusion_cifar10.yaml"),
        use="One model for all with features of the global network beside a client's own, for networks that "
        "have an extractor. It is twice the work to use, too.",
        invariant="lam held at 0 is FedAvg",
    )

    network: FusedNetwork
    server_only = (REFERENCE,)
    wants_index = True

    def __init__(
        self,
        network: NetworkFactory,
        optimizer: OptimizerCallable,
        operator: OperatorName = "conv",
        ema: float = 0.9,
        eval_reference: Literal["previous", "self"] = "previous",
        record: bool = True,
        weighting: Weighting = "examples",
        client_optimizers: ClientOptimizers = None,
        task: Task | None = None,
        train_operator: bool = True,
        fuse_with: FuseWith = "received",
    ) -> None:
        super().__init__(optimizer, client_optimizers, task)
        if not 0 <= check_number("model.ema", ema) < 1:
            raise ValueError(f"`model.ema` must lie in [0, 1), got {ema}.")
        check_choice("model.fuse_with", fuse_with, FuseWith)
        local: Any = build(network, "model.network")
        received: Any = build(network, "model.network")
        if not hasattr(local, "extractor") or len(getattr(local, "feature_shape", ())) != 3:
            raise ValueError("`model.network` must have an `extractor` with a `feature_shape` [c, H, W], and a `head`.")
        fusion = self.build_operator(operator, channels=local.feature_shape[0])
        fusion.requires_grad_(train_operator)
        sees_itself = fuse_with == "own"
        self.network = FusedNetwork(local.extractor, local.head, received.extractor, fusion, sees_itself)
        self.ema = ema
        self.eval_reference = eval_reference
        self.record = record
        self.weighting = weighting
        self._recorded: Tensor | None = None

    def build_operator(self, operator: OperatorName, channels: int) -> Operator:
        """F, for feature maps of c `channels`."""
        check_choice("model.operator", operator, OperatorName)
        if operator == "conv":
            return Convolution(channels)
        return Weighted(channels if operator == "multi" else 1)

    def on_client_start(self, client: Client | None) -> None:
        self.network.reference.load_state_dict(self.network.extractor.state_dict())
        self.network.reference.eval()
        self._recorded = None
        if self.record and not self.network.sees_itself:
            reference = partial(applied, self.network.reference)
            self._recorded = record(reference, client, next(self.parameters()))

    def on_client_end(self, client: Client) -> None:
        self._recorded = None
        self.log_dict(self.network.fusion.summary())

    def training_step(self, batch: tuple[Any, ...], batch_idx: int) -> Tensor:
        x, y, *index = batch
        reference_features = None if self._recorded is None else self._recorded[index[0]]
        loss = loss_of(self)(self.network(x, reference_features), y)
        self.log("train_loss", loss)
        return loss

    def aggregate(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        agreed = self.combine(uploads, current)
        if LAM in agreed:
            agreed[LAM] = self.ema * current[LAM] + (1 - self.ema) * agreed[LAM]
        source = current if self.eval_reference == "previous" else agreed
        reference = {n.replace(EXTRACTOR, REFERENCE): t for n, t in source.items() if n.startswith(EXTRACTOR)}
        return agreed | reference
