"""Methods to try misbehaviour with: every one of fedlit's, one of a user's own, and one with a server's optimiser.

A trial says who misbehaves, in which round, and that it really does: `Act` is marked in memory that processes share, so
that what a client does in a process of its own is known, too.
"""

import mmap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from fedlit import methods
from fedlit.aggregation import weighted_mean
from fedlit.data.client import Client
from fedlit.methods import FederatedModule
from fedlit.server_optimizers import FedAdam

MOMENTUM = partial(torch.optim.SGD, lr=0.1, momentum=0.9)
PLAIN = partial(torch.optim.SGD, lr=0.1)
BAD = 1  # who misbehaves: one comes before it, and one after it
ROUNDS = 3


class Act:
    """What a client is to do, when, and whether it has."""

    action: Callable[[FederatedModule], object] | None = None
    round = 2
    in_network: FederatedModule | None = None  # networks know no client
    _marks = mmap.mmap(-1, 64)  # shared with processes that are forked

    @classmethod
    def begin(cls, action: Callable[[FederatedModule], object] | None, round: int) -> None:
        cls.action = action
        cls.round = round
        cls.in_network = None
        cls._mark("")

    @classmethod
    def is_due(cls, client: Client | None) -> bool:
        return cls.action is not None and client is not None and (client.id, client.round) == (BAD, cls.round)

    @classmethod
    def do(cls, module: FederatedModule) -> object:
        """Act, and note how it ended: it `returned`, raised an error of this name, or is still `acting`."""
        assert cls.action is not None
        cls._mark("acting")
        try:
            found = cls.action(module)
        except BaseException as error:
            cls._mark(type.__getattribute__(type(error), "__qualname__"))
            raise
        cls._mark("returned")
        return found

    @classmethod
    def ended(cls) -> str:
        """How it ended last; empty if nobody has acted."""
        return bytes(cls._marks[:]).rstrip(b"\0").decode()

    @classmethod
    def _mark(cls, word: str) -> None:
        cls._marks[:] = word.encode().ljust(len(cls._marks), b"\0")


class Convolution(nn.Conv2d):
    """In which a network may misbehave, also where a method calls its parts one by one."""

    def forward(self, x):
        if Act.in_network is not None:
            module, Act.in_network = Act.in_network, None
            Act.do(module)
        return super().forward(x)


class Net(nn.Module):
    """A network of a user's own, with all that our methods ask for."""

    feature_shape = (2, 3, 3)

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__()
        self.extractor = nn.Sequential(Convolution(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(18, num_classes))

    def forward(self, x):
        return self.head(self.extractor(x))


class Deeper(Net):
    """As wide at its end, and of another architecture."""

    def __init__(self, num_classes: int = 3) -> None:
        super().__init__(num_classes)
        self.extractor.append(nn.Conv2d(2, 2, 1))


class Own(FederatedModule):
    """A method of a user's own: a shared trunk, a personal head, and a rule that it has written itself."""

    shared = ("network.extractor.",)

    def __init__(self, network, optimizer) -> None:
        super().__init__(optimizer)
        self.network = network()
        self.seen: list[int] = []

    def on_client_start(self, client) -> None:
        self.seen = []

    def training_step(self, batch, batch_idx):
        x, y = batch
        self.seen.append(len(y))
        return F.cross_entropy(self(x), y) + 0.01 * self.network.head[1].weight.square().sum()

    def aggregate(self, uploads, current):
        mean = weighted_mean(uploads)
        return {name: tensor.lerp(mean[name], 0.5) if tensor.is_floating_point() else mean[name]
                for name, tensor in current.items()}  # fmt: skip


@dataclass(frozen=True)
class Trial:
    """A method, and when a client of it misbehaves.

    Attributes:
        kind: The method's class.
        arguments: That it is built with, beside `network` and `optimizer`.
        optimizer: Of a visit.
        round: In which the client misbehaves.
        public: Fraction of the samples that are in the public pool.
        options: Of the federation.
        never: Why a client never comes to a place where it could misbehave, by place.
    """

    kind: type[FederatedModule]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    optimizer: Callable[..., torch.optim.Optimizer] = MOMENTUM
    round: int = 2
    public: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    never: Mapping[str, str] = field(default_factory=dict)

    def build(self) -> FederatedModule:
        torch.manual_seed(0)
        return self.kind(network=Net, optimizer=self.optimizer, **self.arguments)


OTHERS = {"client_networks": {2: Deeper}}
UNWEIGHED = {"client_weight": "nothing is averaged, so nothing has a weight"}
UNSEEN = "a density classifier tells no classes, so no client is evaluated after that stage"
TRIALS: dict[str, Trial] = {
    "APFL": Trial(methods.APFL),
    "Ditto": Trial(methods.Ditto),
    "DLAD": Trial(
        methods.DLAD,
        {"client_epochs": 1, "density_epochs": 1, "distil_epochs": 1},
        public=0.25,
        never={**UNWEIGHED, "probe": UNSEEN, "personalise": UNSEEN},
    ),
    "FD": Trial(methods.FD, OTHERS),
    "FedAvg": Trial(methods.FedAvg),
    "FedAvg with FedAdam": Trial(methods.FedAvg, options={"server_optimizer": partial(FedAdam, lr=0.1)}),
    "FedBN": Trial(methods.FedBN),
    "FedDF": Trial(methods.FedDF, OTHERS, public=0.25),
    "FedDyn": Trial(methods.FedDyn, optimizer=PLAIN),
    "FedFusion": Trial(methods.FedFusion, {"operator": "single"}),
    "FedMD": Trial(
        methods.FedMD,
        {"subset": 8, "public_epochs": 1, "private_epochs": 1, **OTHERS},
        round=4,
        public=0.25,
    ),
    "FedMMD": Trial(methods.FedMMD),
    "FedNova": Trial(methods.FedNova),
    "FedPer": Trial(methods.FedPer),
    "FedProto": Trial(methods.FedProto, {"lam": 0.1, **OTHERS}, PLAIN),
    "FedProx": Trial(methods.FedProx, {"mu": 0.1}),
    "FedRep": Trial(methods.FedRep, {"head_epochs": 1}),
    "FineTuned": Trial(methods.FineTuned, {"finetune_epochs": 1}),
    "FML": Trial(methods.FML),
    "LGFedAvg": Trial(methods.LGFedAvg, OTHERS),
    "LocalOnly": Trial(methods.LocalOnly, never=UNWEIGHED),
    "MixtureOfExperts": Trial(methods.MixtureOfExperts, {"epochs": 1, "baselines": False}),
    "MOON": Trial(methods.MOON, {"projection": 4}),
    "Own": Trial(Own),
    "PerFedAvg": Trial(methods.PerFedAvg),
    "PFedMe": Trial(methods.PFedMe, {"inner_steps": 2}),
    "SCAFFOLD": Trial(methods.SCAFFOLD, optimizer=PLAIN),
}


INSTEAD = ("client_weight", "probe")  # what it returns is what they would
AFTERWARDS = ("on_client_end", "personalise")


def hooked(kind: type[FederatedModule], where: str) -> type[FederatedModule]:
    """A method's class with a hook in which a client may misbehave."""

    def hook(self, *args):
        client = args[0] if args and isinstance(args[0], Client) else self.client
        if not Act.is_due(client):
            return getattr(kind, where)(self, *args)
        if where in INSTEAD:
            return Act.do(self)
        if where not in AFTERWARDS:
            Act.do(self)
        result = getattr(kind, where)(self, *args)
        if where in AFTERWARDS:
            Act.do(self)
        return result

    def training_step(self, batch, batch_idx):
        Act.in_network = self if Act.is_due(self.client) else None
        try:
            return kind.training_step(self, batch, batch_idx)
        finally:
            Act.in_network = None

    added = {"training_step": training_step} if where == "forward" else {where: hook}
    return type(f"Hooked{kind.__name__}", (kind,), added)


def hooked_method(trial: Trial, where: str | None) -> FederatedModule:
    method = trial.build()
    if where is None:
        return method
    parts = [part for part in method.modules() if isinstance(part, FederatedModule)]
    if where.startswith(("on_train", "on_before")) and len(parts) > 1:  # of a programme, its stages have these hooks
        parts = parts[1:]
    for part in parts:
        part.__class__ = hooked(type(part), where)
    return method
