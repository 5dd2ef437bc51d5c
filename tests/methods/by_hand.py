"""Rounds written out, and a step that fits on paper, for invariants and numbers of several methods."""

import math
from functools import partial

import torch
from torch import nn
from torch.utils.data import TensorDataset

from fedlit import FederatedData, LocalOnly, Stage
from fedlit.partition import BinarySeparated
from fedlit.rng import derive, generator

LOG3 = math.log(3)
PLAIN = partial(torch.optim.SGD, lr=1.0)


class Alone(LocalOnly):
    """Local-only training on the batches of a federated stage; all start from one network."""

    def configure_stages(self):
        return [Stage("federate", upload="none")]

    def configure_client(self, client):
        pass


# --- a round written out


def local_batches(data, number, k, epochs):
    """Batches of a client in a round, under its seed there; a last batch of one sample is skipped."""
    x, y = data.images.train_x[data.assignment.train[k]], data.images.train_y[data.assignment.train[k]]
    torch.manual_seed(derive(0, "visit", "federate", number, k))
    shuffle = generator(0, "batches", "federate", number, k)
    for epoch in range(epochs):
        order = torch.randperm(len(y), generator=shuffle)
        for chosen in order.split(data.batch_size):
            if len(chosen) > 1:
                yield epoch, x[chosen], y[chosen]


def mean_of(states):
    """The mean of clients that count alike; of counters, the largest."""
    found = {}
    for name, first in states[0].items():
        tensors = [state[name] for state in states]
        if first.is_floating_point():
            found[name] = (sum(tensor.double() for tensor in tensors) / len(tensors)).to(first)
        else:
            found[name] = torch.stack(tensors).max()
    return found


def copied(state):
    return {name: tensor.clone() for name, tensor in state.items()}


# --- a step that fits on paper: x = 1, logits (0, log 3), so p = (1/4, 3/4)


def one_class_each():
    """Client 0 has samples of class 0 alone, client 1 of class 1; every x is 1, and an epoch is one step."""
    y = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    samples = TensorDataset(torch.ones(8, 1), y)
    return FederatedData(
        train_dataset=samples,
        test_dataset=samples,
        num_clients=2,
        partition=BinarySeparated(),
        batch_size=8,
        val_size=1,
    )


def classifier():
    """Logits w x with w = (0, log 3)."""
    network = nn.Sequential(nn.Linear(1, 2, bias=False))
    with torch.no_grad():
        network[0].weight.copy_(torch.tensor([[0.0], [LOG3]]))
    return network


def chain():
    """Logits h b x with a body b = 1 and a head h = (0, log 3)."""
    network = nn.Sequential(nn.Linear(1, 1, bias=False), *classifier())
    nn.init.ones_(network[0].weight)
    return network


def slope(z, y):
    """Gradient of the cross-entropy by two logits: p - 1 for the class y, p for the other."""
    p = 1 / (1 + math.exp(z[1] - z[0]))
    p = (p, 1 - p)
    return tuple(value - (c == y) for c, value in enumerate(p))
