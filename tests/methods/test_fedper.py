"""FedPer: the body travels, the head stays."""

import pytest
import torch
from by_hand import LOG3, PLAIN, chain, one_class_each
from torch import nn
from toys import SGD, SmallCNN, equal, fitted, linear, rows, seeded, uneven

from fedlit import FedAvg
from fedlit.methods import FedPer, FedRep


class Tied(nn.Module):
    """A language model that reads and writes with the same weights."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(3, 64)
        self.output = nn.Linear(64, 3, bias=False)
        self.output.weight = self.embedding.weight


@pytest.mark.parametrize(("head_layers", "holds"), [(0, True), (1, False)])
def test_a_head_of_0_layers_and_only_that_is_fedavg(head_layers, holds):
    fedper = fitted(seeded(FedPer, SmallCNN, SGD, head_layers=head_layers), uneven())
    fedavg = fitted(seeded(FedAvg, SmallCNN, SGD), uneven())
    assert equal(fedper.global_state, fedavg.global_state) is holds


def test_body_and_head_step_together_and_the_mean_of_the_bodies_by_hand():
    """p = (1/4, 3/4): the logits' gradient is (-3/4, 3/4) for class 0 and (1/4, -1/4) for class 1, and b = 1."""
    federation = fitted(FedPer(chain, PLAIN), one_class_each(), num_rounds=1)
    bodies = [1 - 0.75 * LOG3, 1 + 0.25 * LOG3]
    assert federation.global_state["network.0.weight"].item() == pytest.approx(sum(bodies) / 2)
    heads = [state["network.1.weight"].flatten().tolist() for state in federation.personal_states.values()]
    assert heads == [pytest.approx([0.75, LOG3 - 0.75]), pytest.approx([-0.25, LOG3 + 0.25])]


def test_heads_stay_and_go_on_where_they_ended():
    method = seeded(FedPer, SmallCNN, SGD)
    begun, ended = [], []
    method.on_client_start = lambda client: begun.append(method.network[6].weight.detach().clone())
    method.on_client_end = lambda client: ended.append(method.network[6].weight.detach().clone())
    federation = fitted(method, num_rounds=2)
    assert all(torch.equal(a, b) for a, b in zip(begun[3:], ended[:3], strict=True))
    assert not torch.equal(ended[3], ended[4])
    assert set(federation.personal_states[0]) == {"network.6.weight", "network.6.bias"}
    found = {(row["model"], row["data"]) for row in rows(federation)}
    assert ("personal", "own") in found
    assert not any(model == "global" for model, _ in found)  # the server has no head


@pytest.mark.parametrize("method", [FedPer, FedRep])
@pytest.mark.parametrize(
    ("network", "layers", "message"),
    [
        (lambda: nn.Conv2d(1, 3, 8), 1, r"`model\.network`: Conv2d must hold linear layers for a head, 1, and has 0\."),
        (lambda: nn.Linear(64, 3), 1, r"`model\.network`: Linear must hold linear layers for a head, 1, and has 0\."),
        (linear, 2, r"`model\.network`: Sequential must hold linear layers for a head, 2, and has 1\."),
        (linear, 1, r"`model\.head_layers` 1 is all that Sequential has: nothing would travel\."),
        (Tied, 1, r"`model\.network`: Tied has 'embedding\.weight' both in its head and in its body\."),
        (linear, -1, r"`model\.head_layers` must be at least [01], got -1\."),
        (linear, 0.5, r"`model\.head_layers` must be a whole number, got 0\.5\."),
    ],
)
def test_a_network_that_cannot_be_cut_is_refused_in_one_line(method, network, layers, message):
    with pytest.raises(ValueError, match=message):
        method(network, SGD, head_layers=layers)
