"""What local training freezes is frozen until it ends; what is frozen between rounds stays so."""

from functools import partial
from itertools import pairwise

import torch
from torch import nn
from toys import fitted, toy_data

from fedlit import FedAvg
from fedlit.callbacks import FederationCallback

SGD = partial(torch.optim.SGD, lr=0.1)
LAYER = "network.1.weight"


def two_layers():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Linear(5, 3))


class Freezes(FederationCallback):
    def __init__(self, first):
        self.first = first
        self.layers = []

    def on_round_start(self, federation, method, round, clients):
        method.network[1].requires_grad_(round < self.first)

    def on_round_end(self, federation, method, round, rows):
        self.layers.append(federation.global_state[LAYER].clone())


def changes(layers):
    return [not torch.equal(a, b) for a, b in pairwise(layers)]


def test_what_a_callback_freezes_between_rounds_stays_frozen():
    watch = Freezes(first=3)
    fitted(FedAvg(two_layers, SGD), num_rounds=4, callbacks=[watch])
    assert changes(watch.layers) == [True, False, False]


class FreezesInside(FedAvg):
    """In the second epoch of local training."""

    def on_train_epoch_start(self):
        if self.current_epoch == 1:
            self.network[1].requires_grad_(False)


def test_what_local_training_freezes_ends_with_it():
    watch = Freezes(first=9)
    method = FreezesInside(two_layers, SGD)
    fitted(method, num_rounds=2, local_epochs=2, callbacks=[watch])
    assert changes(watch.layers) == [True]
    assert all(parameter.requires_grad for parameter in method.parameters())


def test_within_local_training_it_holds():
    def layer(kind, epochs):
        torch.manual_seed(1)
        method = kind(two_layers, SGD)
        return fitted(method, toy_data(num_clients=1), num_rounds=1, local_epochs=epochs).global_state[LAYER]

    assert torch.equal(layer(FreezesInside, 3), layer(FedAvg, 1))
    assert not torch.equal(layer(FedAvg, 3), layer(FedAvg, 1))
