"""Federated Mutual Learning. Shen et al., 2020. https://arxiv.org/abs/2006.16765

A client owns a *personal* network that never leaves it and a copy of the global network, which the paper calls the
*meme* network: it carries knowledge from client to client. They teach each other:

    L_personal = alpha * CE(p_personal, y) + (1 - alpha) * KL(p_meme     || p_personal)
    L_meme     = beta  * CE(p_meme, y)     + (1 - beta)  * KL(p_personal || p_meme)

The server averages the memes, all counting the same. A meme's optimiser starts anew in every round, the personal one's
goes on. With `share: extractor` only the meme's extractor travels; the head (the paper's adaptor) stays.
With `personal_from: server` a personal network starts from the model that its client receives first, a newcomer's too.
A variant overrides `imitation_loss`.

Invariants: beta = 1, the meme is trained as in FedAvg with uniform weights; alpha = 1, the personal network as if
alone; with both, and a start from the server, the first local training ends with two equal networks.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from types import NoneType
from typing import Any, Literal, cast

import torch
from lightning.pytorch.cli import OptimizerCallable
from torch import Tensor, nn

from fedlit.bounds import check_choice, check_count, check_kind, check_number
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.losses import kl_divergence, mutual_loss
from fedlit.methods.base import Card, FederatedModule
from fedlit.methods.factories import (
    ClientNetworks,
    ClientOptimizers,
    NetworkFactory,
    build,
    check_choices,
    check_ids,
    draws_initial_values,
    for_client,
    numbered,
)
from fedlit.methods.states import copy_into, groups, twin
from fedlit.rng import Stream, derive, isolated

Share = Literal["all", "extractor"]
Start = Literal["own", "server"]


@dataclass(frozen=True)
class Ramp:
    """A weight that moves from its first value to another over rounds.

    Example:
        >>> [Ramp(until=0.5, rounds=4)(0.9, round) for round in (1, 2, 3, 4, 5, 6)]
        [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]
        >>> [Ramp(until=0.5, rounds=4, steps=2)(0.9, round) for round in (1, 2, 3, 4, 5, 6)]
        [0.9, 0.9, 0.7, 0.7, 0.5, 0.5]

    Args:
        until: Its last value.
        rounds: Rounds until it is reached.
        steps: Equal steps in which it moves; None is a straight line.
    """

    until: float
    rounds: int
    steps: int | None = None

    def __post_init__(self) -> None:
        check_number("until", self.until)
        check_count("rounds", self.rounds)
        if self.steps is not None:
            check_count("steps", self.steps)

    def __call__(self, start: float, round: int) -> float:
        part = min(max(round - 1, 0) / self.rounds, 1.0)
        if self.steps is not None:
            part = int(part * self.steps) / self.steps
        return start * (1 - part) + self.until * part  # in this form never beyond either end


class FML(FederatedModule):
    """A personal and a shared network in deep mutual learning.

    Args:
        personal: Builds the network that stays with the client; its architecture is free. By default as `network`.
        meme: Builds the network that travels; the same architecture everywhere. By default as `network`.
        optimizer: Builds a client's optimiser from the parameters of both.
        alpha: Weight in [0, 1] of the labels in the personal loss; 1 trains the personal network as if alone.
        beta: Weight in [0, 1] of the labels in the meme's loss; 1 trains the meme as FedAvg.
        alpha_ramp: Lets alpha fall over rounds.
        beta_ramp: Lets beta rise over rounds.
        share: Part of the meme that travels: `all`, or its `extractor`, so that clients may differ in their classes.
        client_networks: Another personal network for some clients (a catfish): a list, or a mapping from client id.
        client_memes: With `share: extractor`, a meme with another head for some clients: a list, or a mapping.
        untrained_clients: Clients whose personal network stays as it was drawn: the converse of a catfish.
        personal_from: Where a personal network starts: drawn for each client (`own`), or a copy of the meme that it
            receives first (`server`), which must be of the same architecture.
        network: Builds `personal` and `meme` where they are not given.
    """

    card = Card(
        paper="Shen et al., 2020",
        link="https://arxiv.org/abs/2006.16765",
        travels="the meme",
        stays="a personal network",
        recipes=(
            "fml_fashion.yaml",
            "fml_cifar10.yaml",
            "fml_catfish_fashion.yaml",
            "fml_weak_client_fashion.yaml",
            "fml_ramp_fashion.yaml",
            "fml_newcomer_fashion.yaml",
        ),
        use="Clients want a network of their own, perhaps of another architecture, and a global one beside "
        "it. Local training trains both, which costs the time of two.",
        invariant="beta = 1: the global model is FedAvg's with uniform weights, from the same start; alpha = 1: the "
        "personal one is trained alone",
        tasks=("classification",),
    )

    weighting = "uniform"
    has_started: Tensor

    def __init__(
        self,
        personal: NetworkFactory | None = None,
        meme: NetworkFactory | None = None,
        optimizer: OptimizerCallable | None = None,
        alpha: float = 0.5,
        beta: float = 0.5,
        alpha_ramp: Ramp | None = None,
        beta_ramp: Ramp | None = None,
        share: Share = "all",
        client_networks: ClientNetworks = None,
        client_memes: ClientNetworks = None,
        untrained_clients: list[int] | None = None,
        client_optimizers: ClientOptimizers = None,
        personal_from: Start = "own",
        network: NetworkFactory | None = None,
    ) -> None:
        if optimizer is None:  # it has a default only because networks, which come first, may be left out
            raise ValueError("`model.optimizer` must be given, such as torch.optim.SGD.")
        super().__init__(optimizer, client_optimizers)
        check_choice("model.share", share, Share)
        check_choice("model.personal_from", personal_from, Start)
        check_kind("model.untrained_clients", untrained_clients, (list, NoneType), "a list of client ids")
        _check_weight("alpha", alpha, alpha_ramp, way="fall")
        _check_weight("beta", beta, beta_ramp, way="rise")
        if client_memes is not None and share == "all":
            raise ValueError("`model.client_memes` differ in their heads, which needs `model.share: extractor`.")
        self.alpha = alpha
        self.beta = beta
        self.alpha_ramp = alpha_ramp
        self.beta_ramp = beta_ramp
        self.share = share
        self.factory, self.meme_factory = _factories(personal, meme, network)
        self.client_networks = client_networks
        self.client_memes = client_memes
        self.untrained_clients = untrained_clients or []
        self.personal = build(self.factory, "model.personal")
        self.meme = build(self.meme_factory, "model.meme")
        self.shared = ("meme.",)
        if share == "extractor":
            self.shared = ("meme.extractor.",)
            if not hasattr(self.meme, "extractor"):
                raise ValueError("`model.share: extractor` needs a `model.meme` with an `extractor` and a `head`.")
        self.personal_stream = Stream(0)
        self.starts_from_server = personal_from == "server"
        if self.starts_from_server:
            _check_alike(self.personal, self.meme, "`model.personal`")
            # Stays with the client, and so remembers that its network has started.
            self.register_buffer("has_started", torch.tensor(False))

    def check(self, data: FederatedData) -> None:
        super().check(data)
        check_choices("model.client_memes", self.client_memes, data.num_clients)
        check_ids("model.untrained_clients", self.untrained_clients, data.num_clients)
        if self.starts_from_server:
            self._check_starts(data)

    def _check_starts(self, data: FederatedData) -> None:
        """Refuse clients' networks that cannot start from the server's."""
        chosen = numbered(self.client_networks).keys() | numbered(self.client_memes).keys()
        trial = cast(FML, twin(self))  # building the clients' networks must not change the ones that are about to train
        with isolated(0):
            for k in sorted(chosen):
                trial.configure_client(data.client(k))
                _check_alike(trial.personal, trial.meme, f"`model.client_networks` of client {k}")

    @draws_initial_values("client_networks", "client_memes")
    def configure_client(self, client: Client) -> None:
        factory = for_client(self.factory, self.client_networks, client)
        self.personal = build(factory, "model.client_networks")
        if self.share == "extractor":
            self.meme = build(for_client(self.meme_factory, self.client_memes, client), "model.client_memes")

    def is_untrained(self, client: Client | None) -> bool:
        return client is not None and client.id in self.untrained_clients

    def parameters_of(self, client: Client | None) -> Iterable[dict[str, Any]]:
        if self.is_untrained(client):
            return groups(self.meme)
        return groups(self.personal, self.meme)

    def on_client_start(self, client: Client | None) -> None:
        # Dropout of the personal network must not move the meme's random numbers, or beta = 1 were not FedAvg.
        self.personal_stream = Stream(derive(torch.initial_seed(), "personal"))
        if self.starts_from_server and not self.has_started:
            copy_into(self.personal.state_dict(keep_vars=True), self.meme.state_dict())
            self.has_started.fill_(True)

    def global_model(self) -> nn.Module:
        return self.meme

    def forward(self, x: Tensor) -> Tensor:
        if self.starts_from_server and not self.has_started:
            return self.meme(x)
        return self.personal(x)

    def weights(self) -> tuple[float, float]:
        """Alpha and beta of this round."""
        number = 0 if self.client is None else self.client.round
        alpha = self.alpha if self.alpha_ramp is None else self.alpha_ramp(self.alpha, number)
        beta = self.beta if self.beta_ramp is None else self.beta_ramp(self.beta, number)
        return alpha, beta

    def imitation_loss(self, log_p: Tensor, log_q: Tensor) -> Tensor:
        """KL(q || p): how far a network is from its peer, a constant; both are log-probabilities ``[N, C]``."""
        return kl_divergence(log_p, log_q)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        x, y = batch
        alpha, beta = self.weights()
        z_meme = self.meme(x)
        if self.is_untrained(self.client):
            self.personal.eval()  # statistics stay as they were, too
        with self.personal_stream:
            z_personal = self.personal(x)
        personal_loss = mutual_loss(z_personal, z_meme, y, alpha, self.imitation_loss)
        meme_loss = mutual_loss(z_meme, z_personal, y, beta, self.imitation_loss)
        self.log_dict({"personal_loss": personal_loss, "meme_loss": meme_loss})
        # Peers are constants in mutual_loss, so the gradient of the sum is each network's own gradient.
        return personal_loss + meme_loss


def _check_weight(name: str, start: float, ramp: Ramp | None, way: Literal["fall", "rise"]) -> None:
    check_kind(f"model.{name}_ramp", ramp, (Ramp, NoneType), "a Ramp")
    until = start if ramp is None else ramp.until
    check_number(f"model.{name}", start)
    in_range = 0 <= start <= 1 and 0 <= until <= 1
    turns_back = until > start if way == "fall" else until < start
    if not in_range or turns_back:
        allowed = f"`model.{name}` must lie in [0, 1]"
        if ramp is not None:
            allowed += f" and by `model.{name}_ramp` may only {way}"
        raise ValueError(f"{allowed}, got {start} until {until}.")


def _check_alike(personal: nn.Module, meme: nn.Module, option: str) -> None:
    """One network can start from the other."""
    wanted = {name: tuple(tensor.shape) for name, tensor in meme.state_dict().items()}
    given = {name: tuple(tensor.shape) for name, tensor in personal.state_dict().items()}
    for name in {**wanted, **given}:
        if wanted.get(name) != given.get(name):
            raise ValueError(
                f"`model.personal_from: server` needs {option} of the same architecture as its `model.meme`; "
                f"{name!r} is {given.get(name, 'missing')} and {wanted.get(name, 'missing')}."
            )


def _factories(
    personal: NetworkFactory | None, meme: NetworkFactory | None, network: NetworkFactory | None
) -> tuple[NetworkFactory, NetworkFactory]:
    """The factories of the personal network and of the meme."""
    if personal is not None and meme is not None:
        if network is not None:
            raise ValueError("`model.network` plays no part where `model.personal` and `model.meme` are both given.")
        return personal, meme
    if network is None:
        raise ValueError("`model.personal` and `model.meme` must be given, or `model.network` for both.")
    return personal or network, meme or network
