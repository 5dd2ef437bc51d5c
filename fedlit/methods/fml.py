"""Federated Mutual Learning. Shen et al., 2020. https://arxiv.org/abs/2006.16765

A client owns a *personal* network that never leaves it and a copy of the shared *meme*. They teach each other:

    L_personal = alpha * CE(p_personal, y) + (1 - alpha) * KL(p_meme     || p_personal)
    L_meme     = beta  * CE(p_meme, y)     + (1 - beta)  * KL(p_personal || p_meme)

The server averages the memes, all counting the same. A meme's optimiser starts anew with every fork, the personal one's
goes on. With `share: extractor` only the meme's trunk travels; the head (the paper's adaptor) stays with its client.

Laws: beta = 1, the meme is trained as in FedAvg with uniform weights; alpha = 1, the personal network as if alone.
"""

from collections.abc import Iterable
from typing import Literal

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.data.client import Client
from fedlit.losses import mutual_loss
from fedlit.methods.base import ClientNetworks, ClientOptimizers, FederatedModule, NetworkFactory, build, for_client
from fedlit.methods.ramp import Ramp
from fedlit.rng import Stream, derive


class FML(FederatedModule):
    """A personal and a shared network in deep mutual learning.

    Args:
        personal: Builds the network that stays with the client; its architecture is free.
        meme: Builds the network that travels; the same architecture everywhere.
        optimizer: Builds the optimiser of a visit from the parameters of both.
        alpha: Weight in [0, 1] of the labels in the personal loss; 1 trains the personal network as if alone.
        beta: Weight in [0, 1] of the labels in the meme's loss; 1 trains the meme as FedAvg.
        alpha_ramp: Lets alpha fall over rounds.
        beta_ramp: Lets beta rise over rounds.
        share: What of the meme travels: `all`, or its `extractor` only, so that clients may differ in their classes.
        client_networks: Another personal network for some clients (a catfish): a list, or a mapping from client id.
        client_memes: With `share: extractor`, a meme with another head for some clients: a list, or a mapping.
        untrained_clients: Clients whose personal network stays as it was drawn: the converse of a catfish.
        client_optimizers: Another optimiser for some clients: a list with one for each, or a mapping from client id.
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
        ramps = {"alpha": (alpha, alpha_ramp, "fall"), "beta": (beta, beta_ramp, "rise")}
        for name, (start, ramp, way) in ramps.items():
            until = start if ramp is None else ramp.until
            if not (0 <= start <= 1 and 0 <= until <= 1 and (until <= start if way == "fall" else until >= start)):
                raise ValueError(f"`model.{name}` must lie in [0, 1] and may only {way}, got {start} until {until}.")
        if client_memes is not None and share == "all":
            raise ValueError("`model.client_memes` differ in their heads, which needs `model.share: extractor`.")
        self.factory, self.client_networks, self.meme_factory = personal, client_networks, meme
        self.personal, self.meme = build(personal, "model.personal"), build(meme, "model.meme")
        self.alpha, self.beta, self.alpha_ramp, self.beta_ramp = alpha, beta, alpha_ramp, beta_ramp
        self.shared = ("meme.",) if share == "all" else ("meme.extractor.",)
        self.share, self.client_memes, self.untrained_clients = share, client_memes, untrained_clients or []
        if share == "extractor" and not hasattr(self.meme, "extractor"):
            raise ValueError("`model.share: extractor` needs a `model.meme` with an `extractor` and a `head`.")
        self.personal_stream = Stream(0)

    def configure_client(self, client: Client) -> None:
        self.personal = build(for_client(self.factory, self.client_networks, client), "model.client_networks")
        if self.share == "extractor":
            self.meme = build(for_client(self.meme_factory, self.client_memes, client), "model.client_memes")

    def is_untrained(self, client: Client | None) -> bool:
        return client is not None and client.id in self.untrained_clients

    def parameters_of(self, client: Client | None) -> list[dict[str, Iterable[nn.Parameter]]]:
        # A group for each, so that clipping one network's gradient does not depend on the other's.
        groups = [{"params": [p for p in net.parameters() if p.requires_grad]} for net in (self.personal, self.meme)]
        return groups[1:] if self.is_untrained(client) else groups

    def on_client_start(self, client: Client) -> None:
        # Dropout of the personal network must not move the meme's random numbers, or beta = 1 were not FedAvg.
        self.personal_stream = Stream(derive(torch.initial_seed(), "personal"))

    def global_model(self) -> nn.Module:
        return self.meme

    def forward(self, x: Tensor) -> Tensor:
        return self.personal(x)

    def weights(self) -> tuple[float, float]:
        """Alpha and beta of this round."""
        number = 0 if self.client is None else self.client.round
        alpha = self.alpha if self.alpha_ramp is None else self.alpha_ramp(self.alpha, number)
        return alpha, self.beta if self.beta_ramp is None else self.beta_ramp(self.beta, number)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        alpha, beta = self.weights()
        z_meme = self.meme(x)
        self.personal.train(self.training and not self.is_untrained(self.client))  # statistics stay as they were, too
        with self.personal_stream:
            z_personal = self.personal(x)
        personal_loss = mutual_loss(z_personal, z_meme, y, alpha)
        meme_loss = mutual_loss(z_meme, z_personal, y, beta)
        self.log_dict({"personal_loss": personal_loss, "meme_loss": meme_loss})
        # Peers are constants in mutual_loss, so the gradient of the sum is each network's own gradient.
        return personal_loss + meme_loss
