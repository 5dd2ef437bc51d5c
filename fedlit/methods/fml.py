"""Federated Mutual Learning. Shen et al., 2020. https://arxiv.org/abs/2006.16765

A client owns a *personal* network that never leaves it and a copy of the shared *meme*. They teach
each other:

    L_personal = alpha * CE(p_personal, y) + (1 - alpha) * KL(p_meme     || p_personal)
    L_meme     = beta  * CE(p_meme, y)     + (1 - beta)  * KL(p_personal || p_meme)

The server averages the memes, all counting the same. A meme's optimiser starts anew with every
fork, the personal one's goes on. With `share: extractor` only the meme's trunk travels; the head
(the paper's adaptor) stays with its client.

Laws: beta = 1, the meme is trained as in FedAvg with uniform weights; alpha = 1, the personal
network as if alone.
"""

from collections.abc import Iterable
from typing import Any, Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.losses import mutual_loss
from fedlit.methods.base import FederatedModule
from fedlit.methods.factories import (
    ClientNetworks,
    ClientOptimizers,
    NetworkFactory,
    build,
    check_choices,
    check_ids,
    for_client,
)
from fedlit.methods.ramp import Ramp
from fedlit.rng import Stream, derive


class FML(FederatedModule):
    """A personal and a shared network in deep mutual learning.

    Args:
        personal: Builds the network that stays with the client; its architecture is free.
        meme: Builds the network that travels; the same architecture everywhere.
        optimizer: Builds the optimiser of a visit from the parameters of both.
        alpha: Weight in [0, 1] of the labels in the personal loss; 1 trains the personal network as
            if alone.
        beta: Weight in [0, 1] of the labels in the meme's loss; 1 trains the meme as FedAvg.
        alpha_ramp: Lets alpha fall over rounds.
        beta_ramp: Lets beta rise over rounds.
        share: What of the meme travels: `all`, or its `extractor` only, so that clients may differ
            in their classes.
        client_networks: Another personal network for some clients (a catfish): a list, or a mapping
            from client id.
        client_memes: With `share: extractor`, a meme with another head for some clients: a list, or
            a mapping.
        untrained_clients: Clients whose personal network stays as it was drawn: the converse of a
            catfish.
        client_optimizers: Another optimiser for some clients: a list with one for each, or a
            mapping from client id.
    """

    weighting = "uniform"

    def __init__(
        self,
        personal: NetworkFactory,
        meme: NetworkFactory,
        optimizer: OptimizerCallable,
        alpha: float = 0.5,
        beta: float = 0.5,
        alpha_ramp: Ramp | None = None,
        beta_ramp: Ramp | None = None,
        share: Literal["all", "extractor"] = "all",
        client_networks: ClientNetworks = None,
        client_memes: ClientNetworks = None,
        untrained_clients: list[int] | None = None,
        client_optimizers: ClientOptimizers = None,
    ) -> None:
        super().__init__(optimizer, client_optimizers)
        _check_weight("alpha", alpha, alpha_ramp, way="fall")
        _check_weight("beta", beta, beta_ramp, way="rise")
        if client_memes is not None and share == "all":
            raise ValueError("`model.client_memes` differ in their heads, which needs `model.share: extractor`.")
        self.alpha = alpha
        self.beta = beta
        self.alpha_ramp = alpha_ramp
        self.beta_ramp = beta_ramp
        self.share = share
        self.factory = personal
        self.meme_factory = meme
        self.client_networks = client_networks
        self.client_memes = client_memes
        self.untrained_clients = untrained_clients or []
        self.personal = build(personal, "model.personal")
        self.meme = build(meme, "model.meme")
        self.shared = ("meme.",)
        if share == "extractor":
            self.shared = ("meme.extractor.",)
            if not hasattr(self.meme, "extractor"):
                raise ValueError("`model.share: extractor` needs a `model.meme` with an `extractor` and a `head`.")
        self.personal_stream = Stream(0)

    def check(self, data: FederatedData) -> None:
        super().check(data)
        check_choices("model.client_networks", self.client_networks, data.num_clients)
        check_choices("model.client_memes", self.client_memes, data.num_clients)
        check_ids("model.untrained_clients", self.untrained_clients, data.num_clients)

    def configure_client(self, client: Client) -> None:
        factory = for_client(self.factory, self.client_networks, client)
        self.personal = build(factory, "model.client_networks")
        if self.share == "extractor":
            meme_factory = for_client(self.meme_factory, self.client_memes, client)
            self.meme = build(meme_factory, "model.client_memes")

    def is_untrained(self, client: Client | None) -> bool:
        return client is not None and client.id in self.untrained_clients

    def parameters_of(self, client: Client | None) -> Iterable[dict[str, Any]]:
        # A group for each, so that clipping one network's gradient does not depend on the other's.
        meme = {"params": [p for p in self.meme.parameters() if p.requires_grad]}
        if self.is_untrained(client):
            return [meme]
        personal = {"params": [p for p in self.personal.parameters() if p.requires_grad]}
        return [personal, meme]

    def on_client_start(self, client: Client | None) -> None:
        # Dropout of the personal network must not move the meme's random numbers, or beta = 1 were not FedAvg.
        self.personal_stream = Stream(derive(torch.initial_seed(), "personal"))

    def global_model(self) -> nn.Module:
        return self.meme

    def forward(self, x: Tensor) -> Tensor:
        return self.personal(x)

    def weights(self) -> tuple[float, float]:
        """Alpha and beta of this round."""
        number = 0
        if self.client is not None:
            number = self.client.round
        alpha = self.alpha
        if self.alpha_ramp is not None:
            alpha = self.alpha_ramp(self.alpha, number)
        beta = self.beta
        if self.beta_ramp is not None:
            beta = self.beta_ramp(self.beta, number)
        return alpha, beta

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        alpha, beta = self.weights()
        z_meme = self.meme(x)
        if self.is_untrained(self.client):
            self.personal.eval()  # statistics stay as they were, too
        with self.personal_stream:
            z_personal = self.personal(x)
        personal_loss = mutual_loss(z_personal, z_meme, y, alpha)
        meme_loss = mutual_loss(z_meme, z_personal, y, beta)
        self.log_dict({"personal_loss": personal_loss, "meme_loss": meme_loss})
        # Peers are constants in mutual_loss, so the gradient of the sum is each network's own gradient.
        return personal_loss + meme_loss


def _check_weight(name: str, start: float, ramp: Ramp | None, way: Literal["fall", "rise"]) -> None:
    until = start
    if ramp is not None:
        until = ramp.until
    in_range = 0 <= start <= 1 and 0 <= until <= 1
    turns_back = until > start if way == "fall" else until < start
    if not in_range or turns_back:
        raise ValueError(f"`model.{name}` must lie in [0, 1] and may only {way}, got {start} until {until}.")
