"""Clients with the method's own networks train them in turn: to the bits of building each client's anew."""

from functools import partial

import pytest
import torch
from torch import nn
from toys import SGD, SmallCNN, fitted, linear, same, states, toy_data

from fedlit.callbacks import FederationCallback
from fedlit.methods import FML, FedMD, LGFedAvg, LocalOnly
from fedlit.methods.factories import draws_initial_values

METHODS = {
    "LocalOnly": partial(LocalOnly, linear, SGD, client_networks={1: SmallCNN}),
    "FML": partial(FML, linear, linear, SGD, client_networks={1: SmallCNN}),
    "LGFedAvg": partial(LGFedAvg, SmallCNN, SGD, client_networks={1: SmallCNN}),
    "FedMD": partial(FedMD, linear, SGD, subset=10, public_epochs=1, private_epochs=1),
}


class Counting(nn.Linear):
    built = most = 0

    def __init__(self):
        super().__init__(64, 3)
        Counting.built += 1
        self.passes = 0

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


def unmarked(method):
    """The same method, whose `configure_client` is called each time."""
    kind = type(method)

    def configure_client(self, client):
        kind.configure_client(self, client)

    method.__class__ = type(kind.__name__, (kind,), {"configure_client": configure_client})
    return method


@pytest.mark.parametrize("name", METHODS)
def test_networks_used_in_turn_change_no_bit(name):
    torch.manual_seed(1)
    method = METHODS[name]()
    torch.manual_seed(1)
    rebuilding = unmarked(METHODS[name]())
    assert same(states(fit(method)), states(fit(rebuilding)))


def test_a_network_is_built_for_initial_values_alone():
    Counting.built = 0
    fit(LocalOnly(Counting, SGD))
    common = Counting.built
    fit(unmarked(LocalOnly(Counting, SGD)))
    assert common < (Counting.built - common) / 2


def test_what_one_client_left_in_a_network_does_not_reach_the_next():
    Counting.most = 0
    fit(LocalOnly(Counting, SGD), local_steps=2)
    assert Counting.most == 2


class TakesNetwork(FederationCallback):
    def on_round_start(self, federation, module, round, clients):
        federation.network(client=2)


def test_nor_where_a_callback_has_taken_another_s_own_network():
    Counting.most = 0
    fit(LocalOnly(Counting, SGD, client_networks={2: SmallCNN}), local_steps=2, callbacks=[TakesNetwork()])
    assert Counting.most == 2


def test_what_no_state_holds_is_the_method_s_own_for_all():
    method = LocalOnly(Noisy, SGD)
    noise = method.network.noise.clone()
    federation = fit(method)
    assert all(torch.equal(federation.network(client=k).noise, noise) for k in range(3))


class OwnActivation(LocalOnly):
    """Clients' networks differ in what has no state."""

    def configure_client(self, client):
        activation = nn.Tanh() if client.id else nn.ReLU()
        self.network = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), activation, nn.Linear(8, 3))


class WronglyMarked(OwnActivation):
    configure_client = draws_initial_values()(lambda self, client: OwnActivation.configure_client(self, client))


def hidden() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Sigmoid(), nn.Linear(8, 3))


def test_a_method_that_builds_its_own_networks_is_asked_each_time():
    federation = fit(OwnActivation(hidden, SGD))
    assert isinstance(federation.network(client=0)[2], nn.ReLU)
    assert isinstance(federation.network(client=1)[2], nn.Tanh)


def test_one_that_is_wrongly_marked_is_not():
    """As the test above would fail."""
    assert isinstance(fit(WronglyMarked(hidden, SGD)).network(client=0)[2], nn.Sigmoid)
