"""What is frozen when a run begins is stored and sent once: LoRA on a frozen trunk, a user's own network."""

import pytest
import torch
from torch import nn
from toys import SGD, equal, fitted, rows, toy_data

from fedlit import FedAvg, FineTuned, LocalOnly

WIDTH, RANK = 50, 2
TRUNK = 4 * (64 * WIDTH + 2 * WIDTH)  # bytes of a linear layer and of BatchNorm's weights
MODEL = 4 * (2 * WIDTH + RANK * (WIDTH + WIDTH) + 3 * WIDTH + 3) + 8  # statistics, two factors, a head, a counter


class LoRA(nn.Module):
    """h = relu(norm(W x)), with W and the norm frozen, and a head on (1 + A B) h."""

    def __init__(self, frozen: bool = True):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH, bias=False), nn.BatchNorm1d(WIDTH), nn.ReLU())
        self.trunk.requires_grad_(not frozen)
        self.a = nn.Parameter(torch.zeros(WIDTH, RANK))
        self.b = nn.Parameter(torch.randn(RANK, WIDTH))
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, x):
        h = self.trunk(x)
        return self.head(h + h @ self.b.T @ self.a.T)


def seeded(method, network=LoRA, **options):
    torch.manual_seed(7)
    return method(network, SGD, **options)


@pytest.fixture(scope="module")
def averaged(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("averaged"))
    return fitted(seeded(FedAvg), toy_data(90), fraction_fit=0.7, default_root_dir=folder)


def sizes(federation, direction, kind):
    lines = rows(federation, "ledger.csv")
    return [int(row["bytes"]) for row in lines if (row["direction"], row["kind"]) == (direction, kind)]


def test_a_frozen_trunk_is_sent_once_to_each_client_and_never_comes_back(averaged):
    assert sizes(averaged, "down", "constant") == [TRUNK] * 3
    assert sizes(averaged, "down", "model") == sizes(averaged, "up", "model") == [MODEL] * 6
    first = {}
    for row in rows(averaged, "ledger.csv"):
        first.setdefault(row["client"], row["round"])
        assert row["kind"] != "constant" or row["round"] == first[row["client"]]


def test_the_server_holds_all_of_it_and_statistics_of_a_frozen_norm_are_averaged(averaged):
    initial = seeded(FedAvg).state_dict()
    assert averaged.global_state.keys() == initial.keys()
    weight, mean = "network.trunk.1.weight", "network.trunk.2.running_mean"
    assert torch.equal(averaged.global_state[weight], initial[weight])
    assert not torch.equal(averaged.global_state[mean], initial[mean])
    assert torch.equal(averaged.network().trunk[1].weight, initial[weight])


class Thawed(FedAvg):
    """The same arithmetic, frozen only while a client trains."""

    def on_client_start(self, client):
        self.network.trunk.requires_grad_(False)


def test_it_ends_in_the_bits_of_a_trunk_that_is_sent_again_and_again(averaged):
    again = fitted(seeded(Thawed, lambda: LoRA(frozen=False)), toy_data(90), fraction_fit=0.7)
    assert equal(averaged.global_state, again.global_state)
    assert sizes(again, "up", "model") == [TRUNK + MODEL] * 6


@pytest.mark.parametrize("method", [FineTuned, LocalOnly])
def test_what_stays_with_clients_is_what_trains_alone(method):
    federation = fitted(seeded(method, torch_trunk), toy_data(90), num_rounds=1)
    for state in federation.personal_states.values():
        assert not any(name.startswith("network.trunk.1") for name in state)
        assert "network.a" in state
    x = torch.randn(4, 1, 8, 8)
    networks = [federation.network(client=k).eval() for k in range(2)]
    assert torch.equal(networks[0].trunk[1].weight, networks[1].trunk[1].weight)
    assert not torch.equal(networks[0](x), networks[1](x))


def torch_trunk():
    """The trunk as if it were read from a file: the same whoever builds it."""
    network = LoRA()
    with torch.no_grad():
        network.trunk[1].weight.copy_(torch.linspace(-1, 1, 64 * WIDTH).view(WIDTH, 64))
    return network


class Writes(FedAvg):
    def on_client_end(self, client):
        with torch.no_grad():
            self.network.trunk[1].weight += 1


class WritesOnTheServer(FedAvg):
    def aggregate(self, uploads, current):
        return {**self.combine(uploads, current), "network.trunk.1.weight": torch.zeros(WIDTH, 64)}


@pytest.mark.parametrize(("method", "where"), [(Writes, "in local training"), (WritesOnTheServer, "in `aggregate`")])
def test_changing_it_later_is_refused_by_name(method, where):
    with pytest.raises(ValueError, match=f"'network.trunk.1.weight' required no gradients .* was changed {where}"):
        fitted(seeded(method), toy_data(90))
