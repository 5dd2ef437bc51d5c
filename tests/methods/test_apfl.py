"""APFL: a mixture of weights, and a weight that adapts."""

import math

import pytest
import torch
from by_hand import PLAIN, Alone, classifier, one_class_each
from toys import SGD, SmallCNN, TrunkAndHead, equal, fitted, linear, part, rows, seeded, uneven

from fedlit import FedAvg
from fedlit.methods import APFL


def uniform_fedavg(network):
    return fitted(seeded(FedAvg, network, SGD, weighting="uniform"), uneven())


@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_the_shared_network_is_fedavgs_with_uniform_weights_whatever_alpha(alpha):
    apfl = fitted(seeded(APFL, SmallCNN, SGD, alpha=alpha), uneven())
    assert equal(part(apfl.global_state, "network.w."), part(uniform_fedavg(SmallCNN).global_state, "network."))


@pytest.mark.parametrize(("alpha", "holds"), [(0.0, True), (0.3, False)])
def test_with_alpha_held_at_0_and_only_then_the_mixture_is_the_global_model(alpha, holds):
    federation = fitted(seeded(APFL, TrunkAndHead, SGD, alpha=alpha, alpha_lr=0.0), uneven())
    x = torch.randn(5, 1, 8, 8)
    mixture, network = federation.network(client=1), federation.network()
    with torch.no_grad():
        assert torch.equal(mixture(x), network(x)) is holds


@pytest.mark.parametrize(("alpha", "holds"), [(1.0, True), (0.9, False)])
def test_with_alpha_held_at_1_and_only_then_a_personal_network_is_trained_alone(alpha, holds):
    apfl = fitted(seeded(APFL, TrunkAndHead, SGD, alpha=alpha, alpha_lr=0.0), uneven())
    alone = fitted(seeded(Alone, TrunkAndHead, SGD), uneven())
    for k in range(3):
        assert equal(part(apfl.personal_states[k], "network.v."), part(alone.personal_states[k], "network.")) is holds


def test_a_step_of_v_and_of_alpha_by_hand():
    """v = (1, 0), w = (0, 0), alpha = 1/2: the mixture's logits are (1/2, 0), and v - w = (1, 0)."""
    method = APFL(classifier, PLAIN, alpha=0.5, alpha_lr=0.1)
    with torch.no_grad():
        method.network.w[0].weight.zero_()
        method.network.v[0].weight.copy_(torch.tensor([[1.0], [0.0]]))
    federation = fitted(method, one_class_each(), num_rounds=1)
    p = 1 / (1 + math.exp(-0.5))
    own = federation.personal_states[0]
    assert own["network.alpha"].item() == pytest.approx(0.5 - 0.1 * (p - 1))
    assert own["network.v.0.weight"].flatten().tolist() == pytest.approx([1 - 0.5 * (p - 1), -0.5 * (1 - p)])
    assert federation.personal_states[1]["network.alpha"].item() == pytest.approx(0.5 - 0.1 * p)


@pytest.mark.parametrize(
    ("alpha_lr", "expected"), [(100.0, [1.0, 0.0]), (None, [0.5 + 0.25 * 0.3775, 0.5 - 0.25 * 0.6225])]
)
def test_alpha_is_clipped_and_by_default_steps_at_the_optimisers_rate(alpha_lr, expected):
    method = APFL(classifier, lambda parameters: torch.optim.SGD(parameters, lr=0.25), alpha_lr=alpha_lr)
    with torch.no_grad():
        method.network.w[0].weight.zero_()
        method.network.v[0].weight.copy_(torch.tensor([[1.0], [0.0]]))
    federation = fitted(method, one_class_each(), num_rounds=1, local_epochs=3)  # once in a round
    found = [state["network.alpha"].item() for state in federation.personal_states.values()]
    assert found == pytest.approx(expected, abs=1e-4)


def test_alpha_stays_with_its_client_and_is_recorded():
    federation = fitted(seeded(APFL, linear, SGD), uneven())
    found = {(row["round"], row["client"]): float(row["value"]) for row in rows(federation) if row["metric"] == "alpha"}
    assert {found["1", str(k)] for k in range(3)} == {0.5}  # all start from one network: v - w = 0
    ended = [federation.personal_states[k]["network.alpha"].item() for k in range(3)]
    assert [found["3", str(k)] for k in range(3)] == pytest.approx(ended, abs=1e-5)
    assert len({found["3", str(k)] for k in range(3)}) == 3
    assert "network.alpha" not in federation.global_state
