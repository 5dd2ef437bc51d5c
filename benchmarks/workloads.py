"""The rows of `make bench`: the same work as a tight loop and in fedlit, on the same samples."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from benchmarks import own, tight

MODES = ("exact", "fast")
OPTIMIZERS = {
    "SGD": partial(torch.optim.SGD, lr=0.05),
    "momentum": partial(torch.optim.SGD, lr=0.01, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=0.001),
}
TIGHT = {  # the tight loop's, for exact and for fast mode
    "SGD": (partial(tight.SGD, lr=0.05), partial(tight.SGD, lr=0.05)),
    "momentum": (partial(tight.Momentum, lr=0.01), partial(tight.FusedMomentum, lr=0.01)),
    "Adam": (partial(tight.Adam, lr=0.001), partial(tight.FusedAdam, lr=0.001)),
}


@dataclass(frozen=True)
class Workload:
    """A row.

    Attributes:
        title: What is trained.
        network: Builds the network, the same for both sides.
        per_round: Clients that train in a round.
        rounds: In a turn, which ends with an evaluation of all models and a checkpoint.
        turns: That are measured, after one to warm up; few where they are long.
        method: Its name in `fedlit.methods` and in `benchmarks.tight`.
        options: Of the method, the same for both.
        images: The embedded sample of Fashion-MNIST, or a data set of `benchmarks.own`: noise of MNIST's or CIFAR-10's
            shape, or the former with random transforms.
        own_partition: Whether samples are dealt out by a partition of `benchmarks.own`.
        goal: The ratio to reach in exact mode.
    """

    title: str
    network: Callable[[], nn.Module]
    num_clients: int
    samples: int
    per_round: int
    batch_size: int
    epochs: int = 1
    rounds: int = 1
    turns: int = 7
    method: str = "FedAvg"
    options: dict[str, Any] = field(default_factory=dict)
    optimizer: Literal["SGD", "momentum", "Adam"] = "SGD"
    images: Literal["fashion", "noise", "colour", "transformed"] = "fashion"
    own_partition: bool = False
    modes: tuple[str, ...] = ("exact",)
    goal: float | None = None

    @property
    def fraction(self) -> float:
        return self.per_round / self.num_clients

    @property
    def trainer_options(self) -> dict[str, Any]:
        """What `Federation` is given for the same training."""
        epochs = {} if self.method == "FedRep" else {"local_epochs": self.epochs}  # it has options of its own
        return {**epochs, "fraction_fit": self.fraction}

    def federated_data(self):
        """fedlit's data; the test set is dealt out as the clients' validation samples."""
        from fedlit import FederatedData
        from fedlit.partition import IID

        partition = own.Deal() if self.own_partition else IID(self.samples)
        options = {"num_clients": self.num_clients, "batch_size": self.batch_size, "partition": partition}
        if self.images == "fashion":
            return FederatedData("fashion_sample", validation="test", **options)
        shape = (3, 32, 32) if self.images == "colour" else (1, 28, 28)
        train = own.Noise(self.num_clients * self.samples, shape, augment=self.images == "transformed")
        test = own.Noise(40 if self.images == "colour" else 1000, shape)
        return FederatedData(train_dataset=train, test_dataset=test, validation="test", **options)

    def tight_data(self) -> tight.Data:
        """The same as tensors, normalised and in memory, unless samples are to be read one by one."""
        data = self.federated_data()
        data.setup()
        val = [joined(data.val_batches([k])[0]) for k in range(self.num_clients)]
        test = joined(data.test_batches())
        index = [torch.from_numpy(samples) for samples in data.assignment.train]
        if self.images == "transformed":
            return tight.ReadData([], val, test, data.train_dataset, index)
        images = data.images
        train = [(data.inputs.ready(images.train_x[samples], None), images.train_y[samples]) for samples in index]
        return tight.Data(train, val, test)

    def federated_module(self):
        """fedlit's method."""
        from fedlit import methods

        return getattr(methods, self.method)(network=self.network, optimizer=OPTIMIZERS[self.optimizer], **self.options)

    def tight_loop(self, fast: bool = False, **options: Any) -> tight.FedAvg:
        """The tight loop; `fast` as fast mode may, with fused updates and convolutions in channels last."""
        optimizer = TIGHT[self.optimizer][fast]
        network = partial(channels_last, self.network) if fast else self.network
        build = getattr(tight, self.method)
        return build(network, self.tight_data(), optimizer, self.batch_size, self.epochs, **self.options, **options)


def channels_last(network: Callable[[], nn.Module]) -> nn.Module:
    """A network whose convolutions have their kernels, and so their images, in channels last."""
    return network().to(memory_format=torch.channels_last)


def joined(batches) -> tight.Samples:
    """All samples of some batches."""
    x, y = zip(*batches, strict=True)
    return torch.cat(x), torch.cat(y)


def quiet_federation(num_rounds: int, folder: str, **options):
    """A federation that evaluates and saves in its last round only, and prints nothing."""
    from fedlit import Federation

    often = {"eval_every_n_rounds": num_rounds, "save_every_n_rounds": num_rounds}
    silent = {"enable_progress_bar": False, "logger": False}
    return Federation(num_rounds, default_root_dir=folder, **often, **silent, **options)


W1 = partial(Workload, network=own.CNN, num_clients=10, samples=600, per_round=10, batch_size=32, turns=3)
W1_FEW = partial(W1, per_round=2, rounds=2)
W2 = partial(Workload, network=own.MLP, num_clients=100, samples=60, per_round=10, batch_size=10, epochs=2, rounds=10)
W3 = partial(Workload, network=own.CNN, num_clients=5, samples=600, per_round=5, batch_size=32, turns=3)
W4 = partial(Workload, network=own.resnet18, num_clients=2, samples=32, per_round=2, batch_size=32, turns=3)
W6 = partial(Workload, network=own.Transformer, num_clients=10, samples=100, per_round=10, batch_size=20, rounds=2)
W8 = partial(Workload, num_clients=10, samples=100, per_round=10, batch_size=10, images="transformed")
W9 = partial(Workload, num_clients=1000, samples=10, per_round=100, batch_size=10, rounds=10, images="noise")
ONE_EACH = {"head_epochs": 1, "body_epochs": 1}
WORKLOADS = {
    "W1": W1("FedAvg, 10 clients x 600, CNN, B=32", modes=MODES, goal=1.0),
    "W1-Ditto": W1_FEW("W1 with Ditto, 2 clients a round", method="Ditto", goal=1.05),
    "W1-SCAFFOLD": W1_FEW("W1 with SCAFFOLD, 2 clients a round", method="SCAFFOLD", goal=1.05),
    "W2": W2("FedAvg, 100 clients x 60, 10 a round, MLP, B=10, E=2", modes=MODES, goal=1.1),
    "W2-each": W2("W2, evaluated and saved after each round, as by default", rounds=1, turns=21),
    "W2-momentum": W2("W2 with momentum", optimizer="momentum", modes=MODES, goal=1.05),
    "W2-Adam": W2("W2 with Adam", optimizer="Adam", modes=MODES, goal=1.05),
    "W2-Ditto": W2("W2 with Ditto", method="Ditto", goal=1.25),
    "W2-SCAFFOLD": W2("W2 with SCAFFOLD", method="SCAFFOLD", goal=1.25),
    "W2-FedRep": W2("W2 with FedRep, head and body", method="FedRep", options=ONE_EACH, goal=1.25),
    "W2-FML": W2("W2 with FML", method="FML", goal=1.25),
    "W2-FedMMD": W2("W2 with FedMMD", method="FedMMD", goal=1.25),
    "W3": W3("FML, 5 clients x 600, CNN pair, B=32", method="FML", modes=MODES),
    "W4": W4("FedAvg, 2 clients x 32, ResNet18, B=32", images="colour"),
    "W6": W6("FedAvg, 10 clients x 100, Transformer, Adam, B=20", optimizer="Adam"),
    "W8": W8("FedAvg, 10 clients x 100, MLP, B=10, own data set with random transforms", own.MLP, rounds=5, goal=1.05),
    "W8-CNN": W8("W8 with a CNN", own.CNN, turns=3, goal=1.05),
    "W9": W9("1,000 clients x 10, 100 a round, one step, MLP, own partition", own.MLP, own_partition=True, goal=1.9),
    "W9t": W9("W9 with a tanh network, dealt out by fedlit", own.Tanh, goal=1.9),
}
