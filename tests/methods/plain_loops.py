"""Local training of a client, written out: no federation, no module, no stages."""

import copy
from functools import partial

import torch
import torch.nn.functional as F

from fedlit.rng import derive, generator

RATE = 0.1
PLAIN = partial(torch.optim.SGD, lr=RATE)


def samples(data, k):
    data.setup()
    held = data.assignment.train[k]
    return data.images.train_x[held], data.images.train_y[held]


def batches(data, number, k, epochs=1):
    """A client's batches of a round, in the order of the stage `federate`; torch's own generator is seeded for it.

    A last batch of one sample is skipped (`data.drop_last: single`); no client of `uneven` has a single sample.
    """
    x, y = samples(data, k)
    torch.manual_seed(derive(0, "visit", "federate", number, k))
    shuffle = generator(0, "batches", "federate", number, k)
    for _ in range(epochs):
        for batch in torch.randperm(len(y), generator=shuffle).split(8):
            if len(batch) > 1:
                yield x[batch], y[batch]


def gradients(network, loss) -> list[torch.Tensor]:
    return list(torch.autograd.grad(loss, list(network.parameters())))


def cross_entropy(network, x, y):
    return F.cross_entropy(network(x), y)


def taking_part(method, cohorts):
    """The method with clients of our choice in every round."""
    chosen = dict(enumerate(cohorts, start=1))
    return type(f"Chosen{method.__name__}", (method,), {"select_clients": lambda self, round, _: chosen[round]})


def first_networks(method) -> dict:
    """The network with which each client first trains, by client; filled by a fit."""
    found: dict = {}
    start = method.on_client_start

    def noted(client):
        start(client)
        found.setdefault(client.id, copy.deepcopy(method.network))

    method.on_client_start = noted
    return found
