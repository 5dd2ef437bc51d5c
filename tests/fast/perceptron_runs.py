"""Runs of a small perceptron that a shortcut takes, and of what it must leave alone."""

from functools import partial
from itertools import chain

import torch
import torch.nn.functional as F
from lightning.pytorch.profilers import PassThroughProfiler
from torch import nn
from toys import fitted, toy_data

from fedlit import FedAvg
from fedlit.aggregation import weighted_mean
from fedlit.augment import Flip
from fedlit.methods import FedProx
from fedlit.networks import MLP

SGD = partial(torch.optim.SGD, lr=0.1)
SMALL = partial(MLP, image_size=8, num_classes=3, hidden=(7, 5))


def run(method=None, data=None, **options):
    torch.manual_seed(5)
    method = method() if method else FedAvg(SMALL, SGD)
    data = data() if data else toy_data(size=60, num_clients=5)
    return fitted(method, data, **{"num_rounds": 3, "local_epochs": 2, "fast": True, **options})


def alone(monkeypatch):
    monkeypatch.setattr("fedlit.engine.rounds.visiting.perceptron_names", lambda *_: None)


def drawn_rate(parameters):
    return torch.optim.SGD(parameters, lr=0.1 * float(torch.rand(())))


DRAWN = {"method": lambda: FedAvg(SMALL, drawn_rate)}
DEALS = {
    "equal clients": {},
    "a smaller last batch": {"data": lambda: toy_data(size=60, num_clients=5, batch_size=4)},
    "no smaller batch": {"data": lambda: toy_data(size=60, num_clients=5, batch_size=4, drop_last=True)},
    "clients of different sizes": {"data": lambda: toy_data(size=100, num_clients=8)},
    "batches of different sizes": {"data": lambda: toy_data(size=60, num_clients=5, client_batch_sizes={1: 3})},
    "epochs of different numbers": {"client_epochs": {0: 3}},
    "a number of steps": {"local_epochs": None, "local_steps": 5},
    "rates of different clients": {
        "method": lambda: FedAvg(SMALL, SGD, client_optimizers={2: partial(torch.optim.SGD, lr=0.3)})
    },
    "a schedule": {"lr_schedule": partial(torch.optim.lr_scheduler.ExponentialLR, gamma=0.5)},
    "no hidden layer": {"method": lambda: FedAvg(partial(MLP, image_size=8, num_classes=3, hidden=()), SGD)},
    "weights that are all the same": {"method": lambda: FedAvg(SMALL, SGD, weighting="uniform")},
    "samples that are not shared": {"data": lambda: toy_data(size=60, num_clients=5, opt_out_samples=0.3)},
}


class OwnStart(FedAvg):
    def on_client_start(self, client):
        pass


class PersonalHead(FedAvg):
    shared = ("network.extractor",)


def of(kind, network=SMALL, optimizer=SGD):
    return {"method": lambda: kind(network, optimizer)}


NOT_PLAIN = {
    "a start of its own": of(OwnStart),
    "a personal head": of(PersonalHead),
    "another loss": {"method": lambda: FedProx(SMALL, SGD, mu=0.1)},
    "momentum": of(FedAvg, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)),
    "an optimiser from a function": DRAWN,
    "a clipped gradient": {"gradient_clip_val": 1.0},
    "random inputs": {"data": lambda: toy_data(size=60, num_clients=5, augmentation=[Flip()])},
    "double precision": {"precision": "64-true"},
}


def spoilt_data(how):
    """Client 1 has what would stop or spoil its visit."""
    data = toy_data(size=75, num_clients=5)
    plain = data.train_batches

    def spoilt(client, *args, **options):
        batches = plain(client, *args, **options)
        if client == 1 and how == "batches":
            raise OSError("no disk")
        if client == 1 and how == "samples":
            batches.x[0] = float("nan")
        if client == 1 and how == "targets":
            batches.y[0] = 3
        if client == 1 and how == "fewer":
            batches.x = batches.x[:-1]
        return batches

    data.train_batches = spoilt
    return data


class Others(FedAvg):
    """The same without client 1."""

    def aggregate(self, uploads, current):
        return super().aggregate((upload for upload in uploads if upload.client != 1), current)


REASONS = {"samples": "not finite", "targets": "Target 3", "batches": "no disk", "fewer": "out of range"}


class OwnNetwork(nn.Module):
    """A user's perceptron."""

    def __init__(self):
        super().__init__()
        self.hidden = nn.Linear(64, 7)
        self.out = nn.Linear(7, 3)

    def forward(self, x):
        x = x.view(x.size(0), -1)
        return self.out(F.relu(self.hidden(x)))


SEEN = []


def note(module, *_):
    if module.training:
        SEEN.append(module)


class Watched:
    """A method, data and options that hang a hook on a layer when they are asked for something amid a round."""

    def __init__(self, moment):
        self.data = toy_data(size=60, num_clients=5)
        self.batches = self.data.train_batches
        self.method = FedAvg(SMALL, SGD)
        self.options = {"num_rounds": 1, "local_epochs": 1}
        self.handle = None
        if moment == "optimiser":
            self.method = FedAvg(SMALL, self.optimizer)
        elif moment == "another client's optimiser":
            self.method = FedAvg(SMALL, SGD, client_optimizers={1: self.optimizer_for_all})
        elif moment == "batches":
            self.data.train_batches = self.watched_batches
        elif moment == "rule":
            self.options["aggregator"] = self.rule
        elif moment == "profiler":
            self.options["profiler"] = Profiling(self.hang)
        else:
            self.method = Watching(SMALL, SGD)
            self.method.hang = self.hang

    def run(self, **options):
        try:
            run(lambda: self.method, lambda: self.data, **self.options, **options)
        finally:
            if self.handle is not None:
                self.handle.remove()

    def hang(self):
        if not self.method.network.head._forward_hooks:
            self.method.network.head.register_forward_hook(note)

    def optimizer(self, parameters):
        self.hang()
        return SGD(parameters)

    def optimizer_for_all(self, parameters):
        """What hangs on all modules stays there after the visit."""
        if self.is_training() and self.handle is None:
            self.handle = nn.modules.module.register_module_forward_hook(self.note_head)
        return SGD(parameters)

    def note_head(self, module, *_):
        if module is self.method.network.head:
            note(module)

    def rule(self, uploads, current):
        uploads = iter(uploads)
        first = next(uploads)
        if self.is_training():
            self.hang()
        return weighted_mean(chain([first], uploads))

    def is_training(self):
        """Else something is tried out before the first round."""
        return self.method.client is not None and self.method.client.round == 1

    def watched_batches(self, *args, **options):
        self.hang()
        return self.batches(*args, **options)


class Profiling(PassThroughProfiler):
    """Hangs the hook before the second visit."""

    def __init__(self, hang):
        super().__init__()
        self.hang = hang
        self.visits = 0

    def start(self, action_name):
        self.visits += action_name == "visit"
        if self.visits == 2:
            self.hang()


class Watching(FedAvg):
    def aggregate(self, uploads, current):
        first = next(uploads)
        self.hang()
        return super().aggregate(chain([first], uploads), current)


# Steps that a hook sees: two batches of each of five clients, or of each but the first.
WATCHED = {
    "optimiser": 10,
    "another client's optimiser": 8,
    "batches": 10,
    "aggregation": 8,
    "rule": 8,
    "profiler": 8,
}
