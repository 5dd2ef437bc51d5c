"""The work that is timed, once as a hand-written loop and once in fedlit, on the same samples."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks import bare, own, tight

TEST_IMAGES = 1000  # so many are looked at after every round of the tight loop, or all if there are fewer


@dataclass(frozen=True)
class Mode:
    """How fedlit is run.

    Attributes:
        fast: `trainer.fast`.
        own: With a network of the user's own.
        records: As it comes: evaluated, saved and shown in TensorBoard after every round.
    """

    fast: bool = False
    own: bool = False
    records: bool = False


MODES = {
    "exact": Mode(),
    "fast": Mode(fast=True),
    "own-exact": Mode(own=True),
    "own-fast": Mode(own=True, fast=True),
    "records": Mode(records=True),
    "own-records": Mode(own=True, records=True),
    "fast-records": Mode(fast=True, records=True),
}
MODES_BY_DEFAULT = ("exact", "fast")


@dataclass(frozen=True)
class Workload:
    """A round of work.

    Attributes:
        title: What a reader is told.
        network: Builds the hand-written network.
        ours: The name of fedlit's.
        pair: FML's two networks in place of FedAvg's one.
        images: Name of the data set; `random` is noise of CIFAR-10's shape.
        rounds_a_turn: So many at a time, where a round is short.
        own: Builds the network of a user's own.
        modes: Those of fedlit that are compared by default.
    """

    title: str
    network: Callable[[], nn.Module]
    ours: str
    num_clients: int
    samples: int
    per_round: int
    batch_size: int
    epochs: int = 1
    pair: bool = False
    images: str = "mnist"
    rounds_a_turn: int = 1
    own: Callable[[], nn.Module] | None = None
    modes: tuple[str, ...] = MODES_BY_DEFAULT

    def shards(self, root: str | None) -> list[bare.Shard]:
        """Inputs and targets of every client, as a hand-written loop would hold them: normalised, in memory."""
        return self.tensors(root)[0]

    def tensors(self, root: str | None) -> tuple[list[bare.Shard], bare.Shard]:
        """The shards, and inputs and targets of the test images."""
        data = self.data(root)
        data.setup()
        images = data.images
        ready = data.inputs.ready
        shards = [(ready(images.train_x[index], None), images.train_y[index]) for index in data.assignment.train]
        test = (ready(images.test_x[:TEST_IMAGES], None), images.test_y[:TEST_IMAGES])
        return shards, test

    def loop(self, root: str | None) -> bare.FedAvg:
        """The hand-written loop."""
        shards = self.shards(root)
        if self.pair:
            personal = [self.network() for _ in shards]
            return bare.FML(personal, self.network(), shards, self.batch_size, self.epochs)
        return bare.FedAvg(self.network(), shards, self.batch_size, self.epochs)

    def tight_loop(self, root: str | None) -> tight.FedAvg:
        """The tight one."""
        shards, test = self.tensors(root)
        if self.pair:
            personal = [self.network() for _ in shards]
            return tight.FML(personal, self.network(), shards, test, self.batch_size, self.epochs)
        return tight.FedAvg(self.network(), shards, test, self.batch_size, self.epochs)

    def data(self, root: str | None):
        """The same for fedlit. Without a folder of data sets, MNIST's place is taken by the embedded sample."""
        from fedlit import FederatedData
        from fedlit.partition import IID

        options = {"num_clients": self.num_clients, "partition": IID(self.samples), "batch_size": self.batch_size}
        if self.images == "random":
            return FederatedData(
                train_dataset=Noise(self.num_clients * self.samples), test_dataset=Noise(100), **options
            )
        chosen = {"dataset": "fashion_sample"} if root is None else {"dataset": self.images, "root": root}
        return FederatedData(validation="test", **chosen, **options)

    def method(self, own: bool = False):
        """The same for fedlit, with its network or a user's own."""
        from fedlit import FedAvg, networks
        from fedlit.methods import FML

        network = self.own if own else getattr(networks, self.ours)
        sgd = partial(torch.optim.SGD, lr=0.05)
        return FML(network, network, sgd) if self.pair else FedAvg(network, sgd)


def default_federation(num_rounds: int, folder: str, **options):
    """A federation that evaluates, saves and shows every round in TensorBoard, as it comes; but says nothing."""
    from fedlit import Federation

    return Federation(num_rounds, default_root_dir=folder, enable_progress_bar=False, **options)


def quiet_federation(num_rounds: int, folder: str, **options):
    """A federation that evaluates and saves in its last round only, and says nothing."""
    from fedlit import Federation

    often = {"eval_every_n_rounds": num_rounds, "save_every_n_rounds": num_rounds}
    silent = {"enable_progress_bar": False, "logger": False}
    return Federation(num_rounds, default_root_dir=folder, **often, **silent, **options)


class Noise(torch.utils.data.Dataset):
    """Images of CIFAR-10's shape."""

    def __init__(self, size: int) -> None:
        draw = np.random.default_rng(0)
        self.x = torch.from_numpy(draw.random((size, 3, 32, 32), dtype=np.float32))
        self.y = draw.integers(0, 10, size)
        self.y[:10] = range(10)

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.x[index], int(self.y[index])


WORKLOADS = {
    "W1": Workload(
        "FedAvg, 10 clients x 600, McMahan CNN, B=32",
        bare.cnn,
        "McMahanCNN",
        num_clients=10,
        samples=600,
        per_round=10,
        batch_size=32,
        own=own.OwnCNN,
        modes=(*MODES_BY_DEFAULT, "own-exact", "own-fast"),
    ),
    "W2": Workload(
        "FedAvg, 100 clients x 60, MLP, B=10, E=2, 10 a round",
        bare.mlp,
        "MLP",
        num_clients=100,
        samples=60,
        per_round=10,
        batch_size=10,
        epochs=2,
        rounds_a_turn=10,
        own=own.OwnMLP,
        modes=(*MODES_BY_DEFAULT, "own-exact", "own-fast", "records"),
    ),
    "W3": Workload(
        "FML, 5 clients x 600, CNN pair, B=32",
        bare.cnn,
        "McMahanCNN",
        num_clients=5,
        samples=600,
        per_round=5,
        batch_size=32,
        pair=True,
        own=own.OwnCNN,
        modes=(*MODES_BY_DEFAULT, "own-exact", "own-fast"),
    ),
    "W4": Workload(
        "FedAvg, 2 clients x 64, ResNet18, B=64",
        bare.resnet18,
        "ResNet18",
        num_clients=2,
        samples=64,
        per_round=2,
        batch_size=64,
        images="random",
    ),
    "W5": Workload(
        "FML, 2 clients x 128, CNN2 pair, B=128",
        bare.cnn2,
        "CNN2",
        num_clients=2,
        samples=128,
        per_round=2,
        batch_size=128,
        pair=True,
        images="random",
    ),
}


def data_folder(given: str | None) -> str | None:
    """A folder with mnist.npz, if the user has one."""
    return given if given and (Path(given) / "mnist.npz").exists() else None
