"""Client networks of one architecture are built once and used by all: to the bits of building each client's anew."""

from functools import partial

import pytest
import torch
from torch import nn
from toys import SGD, SmallCNN, fitted, linear, same, states, toy_data

from fedlit.methods import FML, FedMD, LGFedAvg, LocalOnly
from fedlit.methods.factories import built_once

METHODS = {
    "LocalOnly": partial(LocalOnly, linear, SGD, client_networks={1: SmallCNN}),
    "FML": partial(FML, linear, linear, SGD, client_networks={1: SmallCNN}),
    "LGFedAvg": partial(LGFedAvg, SmallCNN, SGD),
    "FedMD": partial(FedMD, linear, SGD, subset=10, public_epochs=1, private_epochs=1),
}


class Counting(nn.Linear):
    built = most = 0

    def __init__(self):
        super().__init__(64, 3)
        Counting.built += 1
        self.passes = 0
        self.most = 0

    def forward(self, x):
        self.passes += self.training
        Counting.most = max(Counting.most, self.passes)
        return super().forward(x.flatten(1))


class Noisy(nn.Module):
    """Adds what was drawn when it was built, and no state holds."""

    def __init__(self):
        super().__init__()
        self.linear = linear()
        self.register_buffer("noise", torch.randn(3), persistent=False)

    def forward(self, x):
        return self.linear(x) + self.noise


class Fourier(nn.Module):
    """Has random features in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.features = torch.randn(64, 8)
        self.out = nn.Linear(8, 3)

    def forward(self, x):
        return self.out(x.flatten(1) @ self.features)


def dropout() -> nn.Module:
    """Drops another share in each network."""
    return nn.Sequential(linear(), nn.Dropout(float(torch.rand(())) / 2))


def frozen() -> nn.Module:
    """Trains another part of each network."""
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    network[1 + int(torch.rand(()) < 0.5)].requires_grad_(False)
    return network


class Remembering(nn.Module):
    """Counts its forward passes where no restoration looks, and computes with them."""

    def __init__(self):
        super().__init__()
        self.linear = linear()
        self.seen = [[0]]

    def forward(self, x):
        self.seen[0][0] += self.training
        return self.linear(x) / (1 + self.seen[0][0])


def fit(method, **options):
    torch.manual_seed(1)
    public = 0.5 if isinstance(method, FedMD) else 0.0
    return fitted(method, toy_data(num_clients=3, public=public), num_rounds=3, seed=2, **options)


@pytest.fixture
def uncached(monkeypatch):
    """From here on, every client's networks are built each time."""
    return lambda: monkeypatch.setattr("fedlit.engine.live_module.settings_of", lambda network: None)


@pytest.mark.parametrize("name", METHODS)
def test_caching_networks_changes_no_bit(name, uncached):
    torch.manual_seed(1)
    cached = states(fit(METHODS[name]()))
    uncached()
    torch.manual_seed(1)
    assert same(cached, states(fit(METHODS[name]())))


def test_a_network_is_built_for_initial_values_alone(uncached):
    Counting.built = 0
    fit(LocalOnly(Counting, SGD))
    cached = Counting.built
    uncached()
    fit(LocalOnly(Counting, SGD))
    assert cached < (Counting.built - cached) / 2


def test_what_one_client_left_in_a_cached_network_does_not_reach_the_next():
    Counting.most = 0
    fit(LocalOnly(Counting, SGD), local_steps=2)
    assert Counting.most == 2


@pytest.mark.parametrize("network", [Noisy, Fourier, dropout, frozen, Remembering])
def test_what_no_state_holds_is_each_client_s_own(network, uncached):
    found = states(fit(LocalOnly(network, SGD)))
    uncached()
    assert same(found, states(fit(LocalOnly(network, SGD))))


class OwnActivation(LocalOnly):
    """Clients' networks differ in what has no state."""

    @built_once
    def configure_client(self, client):
        activation = nn.Tanh() if client.id else nn.ReLU()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation, nn.Linear(8, 3))


class OwnScale(LocalOnly):
    """Clients differ in an attribute of the method."""

    @built_once
    def configure_client(self, client):
        super().configure_client(client)
        self.scale = 1.0 + client.id

    def training_step(self, batch, batch_idx):
        return self.scale * super().training_step(batch, batch_idx)


class LaterFrozen(LocalOnly):
    """Its networks differ from round to round, and it does not say otherwise."""

    def configure_client(self, client):
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
        self.network[1].requires_grad_(client.round < 2)


@pytest.mark.parametrize("method", [OwnActivation, OwnScale, LaterFrozen])
def test_clients_that_differ_otherwise_have_networks_of_their_own(method, uncached):
    found = states(fit(method(linear, SGD)))
    uncached()
    assert same(found, states(fit(method(linear, SGD))))


def test_networks_that_are_wrongly_taken_for_alike_are_noticed(monkeypatch):
    """As the tests above would fail."""
    found = states(fit(OwnActivation(linear, SGD)))
    monkeypatch.setattr("fedlit.engine.live_module.settings_of", lambda network: ())
    assert not same(found, states(fit(OwnActivation(linear, SGD))))
