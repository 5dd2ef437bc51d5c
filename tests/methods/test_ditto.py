"""Ditto: FedAvg's network, and one of one's own near it."""

import pytest
import torch
import torch.nn.functional as F
from by_hand import LOG3, PLAIN, Alone, classifier, copied, local_batches, mean_of, one_class_each, slope
from torch import nn
from toys import SGD, SmallCNN, equal, fitted, linear, part, rows, seeded, toy_data, uneven

from fedlit import FedAvg
from fedlit.methods import Ditto


def normalised():
    """BatchNorm, and no dropout: both networks would draw from the same numbers."""
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_the_shared_network_is_fedavgs_whatever_lam(lam):
    ditto = fitted(seeded(Ditto, SmallCNN, SGD, lam=lam), uneven())
    assert equal(ditto.global_state, fitted(seeded(FedAvg, SmallCNN, SGD), uneven()).global_state)


@pytest.mark.parametrize(("lam", "holds"), [(0.0, True), (0.1, False)])
def test_with_lam_0_and_only_then_a_personal_network_is_trained_alone(lam, holds):
    ditto = fitted(seeded(Ditto, normalised, SGD, lam=lam), uneven())
    alone = fitted(seeded(Alone, normalised, SGD), uneven())
    for k in range(3):
        assert equal(part(ditto.personal_states[k], "personal."), part(alone.personal_states[k], "network.")) is holds


def replay(data, rounds, lam):
    """Ditto written out: w starts anew from the server's, v and its momentum go on."""
    torch.manual_seed(7)
    w = normalised()
    server = copied(w.state_dict())
    personal = [normalised() for _ in range(3)]
    for v in personal:
        v.load_state_dict(server)
    momenta = [SGD(v.parameters()) for v in personal]
    for number in range(1, rounds + 1):
        ended = []
        for k, v in enumerate(personal):
            w.load_state_dict(server)
            optimizer = SGD(w.parameters())
            for _, x, y in local_batches(data, number, k, epochs=1):
                optimizer.zero_grad()
                F.cross_entropy(w(x), y).backward()
                optimizer.step()
                v.zero_grad()
                F.cross_entropy(v(x), y).backward()
                for name, parameter in v.named_parameters():
                    parameter.grad += lam * (parameter.detach() - server[name])
                momenta[k].step()
            ended.append(copied(w.state_dict()))
        server = mean_of(ended)
    return server, [v.state_dict() for v in personal]


def test_three_rounds_are_a_loop_written_out_bit_for_bit():
    """With lam a power of two, so that lam/2 * 2 (v - w) is lam (v - w) to the bit."""
    data = toy_data()
    federation = fitted(seeded(Ditto, normalised, SGD, lam=0.5), data)
    server, personal = replay(data, rounds=3, lam=0.5)
    assert equal(part(federation.global_state, "network."), server)
    for k, v in enumerate(personal):
        assert equal(part(federation.personal_states[k], "personal."), v)


def test_two_steps_by_hand():
    """v_1 = w_1, for both start from w_0 = (0, log 3); the second step pulls v towards w_0 by lam."""
    federation = fitted(Ditto(classifier, PLAIN, lam=0.4), one_class_each(), num_rounds=1, local_epochs=2)
    shared = []
    for y, once in enumerate([(0.75, LOG3 - 0.75), (-0.25, LOG3 + 0.25)]):
        d = slope(once, y)
        pull = (0.4 * once[0], 0.4 * (once[1] - LOG3))
        v = [once[c] - d[c] - pull[c] for c in range(2)]
        assert federation.personal_states[y]["personal.0.weight"].flatten().tolist() == pytest.approx(v)
        shared.append([once[c] - d[c] for c in range(2)])
    w = [sum(values) / 2 for values in zip(*shared, strict=True)]
    assert federation.global_state["network.0.weight"].flatten().tolist() == pytest.approx(w)


def test_the_personal_network_stays_and_both_models_are_logged():
    federation = fitted(Ditto(SmallCNN, SGD), num_rounds=2)
    assert {name.split(".")[0] for name in federation.personal_states[1]} == {"personal"}
    assert {name.split(".")[0] for name in federation.global_state} == {"network"}
    found = {(row["model"], row["data"]) for row in rows(federation)}
    assert {("global", "pooled"), ("global", "own"), ("personal", "own")} <= found


def test_clipping_one_networks_gradient_does_not_depend_on_the_other():
    states = [fitted(seeded(Ditto, linear, SGD, lam=lam), gradient_clip_val=0.05).global_state for lam in (0.0, 5.0)]
    assert equal(*states)
