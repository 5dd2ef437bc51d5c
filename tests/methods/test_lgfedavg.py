"""LG-FedAvg: the head travels, extractors stay and may differ."""

import pytest
import torch
from by_hand import LOG3, PLAIN, chain, one_class_each
from torch import nn
from toys import SGD, SmallCNN, TrunkAndHead, fitted, part, rows, seeded, uneven

from fedlit import FedAvg
from fedlit.methods import LGFedAvg


def perceptron():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 36), nn.ReLU(), nn.Dropout(0.3), nn.Linear(36, 3))


class Deep(nn.Module):
    """Another architecture, another path, a head of the same shape; it reads its own weight."""

    def __init__(self, width=36):
        super().__init__()
        self.trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.Tanh(), nn.Linear(9, width))
        self.classify = nn.ModuleDict({"last": nn.Linear(width, 3)})

    def forward(self, x):
        assert self.classify["last"].weight.shape[0] == 3
        return self.classify["last"](self.trunk(x))


@pytest.mark.parametrize(("head_layers", "holds"), [(2, True), (1, False)])
def test_a_head_of_all_layers_and_only_that_is_fedavg(head_layers, holds):
    ours = fitted(seeded(LGFedAvg, perceptron, SGD, head_layers=head_layers), uneven())
    fedavg = fitted(seeded(FedAvg, perceptron, SGD), uneven())
    states = [list(federation.global_state.values()) for federation in (ours, fedavg)]
    assert (len(states[0]) == len(states[1]) and all(map(torch.equal, *states))) is holds


def test_body_and_head_step_together_and_the_mean_of_the_heads_by_hand():
    """The gradients are FedPer's: what stayed there travels here."""
    federation = fitted(LGFedAvg(chain, PLAIN), one_class_each(), num_rounds=1)
    mean = [(0.75 - 0.25) / 2, LOG3 - (0.75 - 0.25) / 2]
    assert federation.global_state["network.head.0.weight"].flatten().tolist() == pytest.approx(mean)
    bodies = [state["network.body.0.weight"].item() for state in federation.personal_states.values()]
    assert bodies == pytest.approx([1 - 0.75 * LOG3, 1 + 0.25 * LOG3])


def test_extractors_of_other_architectures_share_a_head_whatever_its_path():
    method = LGFedAvg(SmallCNN, SGD, client_networks={1: Deep, 2: TrunkAndHead})
    begun = []
    method.on_client_start = lambda client: begun.append(method.network.head[0].weight.detach().clone())
    federation = fitted(method, num_rounds=2, min_clients=3)
    assert all(torch.equal(begun[3], other) for other in begun[4:])
    assert set(federation.global_state) == {"network.head.0.weight", "network.head.0.bias"}
    assert {int(row["bytes"]) for row in rows(federation, "ledger.csv")} == {4 * (36 * 3 + 3)}
    names = [set(part(federation.personal_states[k], "network.body.")) for k in range(3)]
    assert {"0.weight", "1.running_mean"} <= names[0]
    assert names[1] == {"trunk.1.weight", "trunk.1.bias", "trunk.3.weight", "trunk.3.bias"}
    assert names[2] == {"extractor.0.weight", "extractor.0.bias"}
    assert {row["model"] for row in rows(federation)} == {"trained", "personal"}


def test_a_client_keeps_its_extractor_from_round_to_round():
    method, begun, ended = LGFedAvg(SmallCNN, SGD, client_networks={1: Deep}), [], []
    method.on_client_start = lambda client: begun.append(next(method.network.body.parameters()).detach().clone())
    method.on_client_end = lambda client: ended.append(next(method.network.body.parameters()).detach().clone())
    fitted(method, num_rounds=2)
    assert all(torch.equal(a, b) for a, b in zip(begun[3:], ended[:3], strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"client_networks": {2: lambda: Deep(width=9)}},
            r"`model\.client_networks` of client 2 must have a head as `model\.network`, "
            r"\[\(3, 36\), \(3,\)\], got \[\(3, 9\), \(3,\)\]\.",
        ),
        ({"client_networks": {5: Deep}}, r"`model\.client_networks` names client 5, but the clients are 0 to 2"),
        (
            {"client_networks": {2: lambda: nn.Conv2d(1, 3, 8)}},
            r"`model\.client_networks`: Conv2d must hold linear layers for a head, 1, and has 0",
        ),
    ],
)
def test_a_network_whose_head_cannot_be_shared_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        fitted(LGFedAvg(SmallCNN, SGD, **options))
