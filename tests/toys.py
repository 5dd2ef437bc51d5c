"""Networks, data, methods and runs that take a moment, for the tests of everything."""

import csv
import errno
import json
import os
import signal
import weakref
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from fedlit import FedAvg, FederatedData, FederatedModule, Federation
from fedlit.callbacks import FederationCallback
from fedlit.partition import Dirichlet

SGD = partial(torch.optim.SGD, lr=0.1, momentum=0.9)


class SmallCNN(nn.Sequential):
    """What breaks most easily: BatchNorm's buffers and dropout's random numbers."""

    def __init__(self, num_classes: int = 3) -> None:
        convolution = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)]
        super().__init__(*convolution, nn.Flatten(), nn.Dropout(0.3), nn.Linear(36, num_classes))


class TrunkAndHead(nn.Module):
    """A trunk, and a head for as many classes as asked for."""

    def __init__(self, num_classes=3):
        super().__init__()
        self.extractor = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.MaxPool2d(2))
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(36, num_classes))

    def forward(self, x):
        return self.head(self.extractor(x))


def toy_datasets(size: int = 60, num_classes: int = 3, seed: int = 0) -> tuple[TensorDataset, TensorDataset]:
    """Images of noise around a mean per class, so that there is something to learn."""
    draw = torch.Generator().manual_seed(seed)
    means = torch.randn(num_classes, 1, 8, 8, generator=draw)

    def sample(n: int) -> TensorDataset:
        y = torch.arange(n) % num_classes
        return TensorDataset(means[y] + torch.randn(n, 1, 8, 8, generator=draw), y)

    return sample(size), sample(30)


def toy_data(size: int = 60, **options) -> FederatedData:
    train, test = toy_datasets(size)
    defaults = {"num_clients": 3, "batch_size": 8, "val_size": 0.1}
    return FederatedData(train_dataset=train, test_dataset=test, **{**defaults, **options})


def fitted(model: FederatedModule, data: FederatedData | None = None, ckpt_path: str | None = None, **options):
    """A federation after its fit; without a folder unless `default_root_dir` is given."""
    quiet = {"num_rounds": 3, "enable_progress_bar": False, "logger": False, "accelerator": "cpu", "report": False}
    federation = Federation(**{**quiet, **options})
    federation.fit(model, toy_data() if data is None else data, ckpt_path)
    return federation


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    """Same names, same bits."""
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def states(federation: Federation) -> dict:
    """What server and clients hold, by owner."""
    return {"server": federation.global_state, **federation.personal_states}


def same(a: dict, b: dict) -> bool:
    """Same owners, names and bits."""
    return a.keys() == b.keys() and all(equal(a[owner], b[owner]) for owner in a)


def seeded(method, *args, **options):
    """A method with the same initial weights every time."""
    torch.manual_seed(7)
    return method(*args, **options)


def uneven(**options) -> FederatedData:
    """Three clients that differ in size and classes."""
    return toy_data(partition=Dirichlet(alpha=1.0, min_samples=6), **options)


def part(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The entries with a prefix, without it."""
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def in_a_child(work) -> int:
    """Run in a process of its own; minus the signal that killed it, or 0."""
    child = os.fork()
    if child == 0:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class KillAt(FederationCallback):
    """kill -9 at the start or the end of a round."""

    def __init__(self, round: int, moment: str) -> None:
        self.round, self.moment = round, moment

    def on_round_start(self, federation, module, round, clients):
        if (round, "start") == (self.round, self.moment):
            os.kill(os.getpid(), signal.SIGKILL)

    def on_round_end(self, federation, module, round, rows):
        if (round, "end") == (self.round, self.moment):
            os.kill(os.getpid(), signal.SIGKILL)


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))


class Diary:
    """What a method notes for a test: written beside it, since attributes of the method end with local training."""

    def __init__(self, begin=list) -> None:
        self.begin = begin
        self.notes: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def __get__(self, method, kind=None):
        return self if method is None else self.notes.setdefault(method, self.begin())

    def __set__(self, method, value) -> None:
        self.notes[method] = value


class Spy(FedAvg):
    """Notes what happens in local training."""

    trained = Diary()
    steps = Diary(dict)
    batch_sizes = Diary(dict)
    rates = Diary(dict)

    def __init__(self, network=linear, optimizer=SGD, **options):
        super().__init__(network, optimizer, **options)

    def on_client_start(self, client):
        self.trained.append((client.round, client.id))

    def training_step(self, batch, batch_idx):
        key = (self.client.round, self.client.id)
        self.steps[key] = self.steps.get(key, 0) + 1
        self.batch_sizes.setdefault(self.client.id, len(batch[1]))
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self):
        optimizer = super().configure_optimizers()
        self.last_optimizer = optimizer
        return optimizer

    def on_client_end(self, client):
        self.rates[client.round] = self.last_optimizer.param_groups[0]["lr"]


def rows(federation: Federation, name: str = "metrics.csv") -> list[dict[str, str]]:
    """The lines of a record."""
    with open(f"{federation.log_dir}/{name}") as file:
        return list(csv.DictReader(file))


def events(folder, what: str) -> list[dict]:
    """The events of a kind, of a run's folder."""
    with open(f"{folder}/events.jsonl") as file:
        return [event for event in map(json.loads, file) if event["event"] == what]


def full_after(size, monkeypatch):
    """A disk on which no checkpoint of more bytes can be written."""

    def write_bytes(path, data):
        with path.open("wb") as file:
            file.write(data[:size])
        if len(data) > size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
