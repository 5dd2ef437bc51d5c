"""Client networks of one architecture are built once and used by all: to the bits of building each client's anew."""

from functools import partial

import pytest
import torch
from torch import nn
from toys import SGD, SmallCNN, fitted, linear, same, states, toy_data

from fedlit.methods import FML, FedMD, LGFedAvg, LocalOnly

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


def fit(method, **options):
    torch.manual_seed(1)
    public = 0.5 if isinstance(method, FedMD) else 0.0
    return fitted(method, toy_data(num_clients=3, public=public), num_rounds=3, seed=2, **options)


@pytest.mark.parametrize("name", METHODS)
def test_caching_networks_changes_no_bit(name, monkeypatch):
    torch.manual_seed(1)
    cached = states(fit(METHODS[name]()))
    torch.manual_seed(1)
    method = METHODS[name]()
    monkeypatch.setattr(type(method), "architecture", lambda self, client: None)
    assert same(cached, states(fit(method)))


def test_a_network_is_built_for_initial_values_alone(monkeypatch):
    Counting.built = 0
    fit(LocalOnly(Counting, SGD))
    cached = Counting.built
    monkeypatch.setattr(LocalOnly, "architecture", lambda self, client: None)
    fit(LocalOnly(Counting, SGD))
    assert cached < (Counting.built - cached) / 2


def test_what_one_client_left_in_a_cached_network_does_not_reach_the_next():
    Counting.most = 0
    fit(LocalOnly(Counting, SGD), local_steps=2)
    assert Counting.most == 2


def test_what_no_state_holds_is_each_client_s_own(monkeypatch):
    with_noise = states(fit(LocalOnly(Noisy, SGD)))
    monkeypatch.setattr(LocalOnly, "architecture", lambda self, client: None)
    assert same(with_noise, states(fit(LocalOnly(Noisy, SGD))))


class Scaled(nn.Module):
    def __init__(self, factor: float):
        super().__init__()
        self.linear = linear()
        self.factor = factor

    def forward(self, x):
        return self.factor * self.linear(x)


class OwnScale(LocalOnly):
    def configure_client(self, client):
        self.network = Scaled(1.0 + client.id)


def test_a_subclass_that_builds_something_else_has_networks_of_its_own():
    class Known(OwnScale):
        def architecture(self, client):
            return client.id

    class Wrong(OwnScale):
        def architecture(self, client):
            return "all alike"

    safe, known, wrong = (states(fit(kind(linear, SGD))) for kind in (OwnScale, Known, Wrong))
    assert same(safe, known)
    assert not same(safe, wrong)
