"""Federated distillation: leave one out, by hand and by a plain loop; gamma = 0 is local training."""

import math

import pytest
import torch
import torch.nn.functional as F
from plain_loops import PLAIN, RATE, batches, first_networks, gradients, taking_part
from test_fedproto import Alone, Wide
from torch import nn, tensor
from torch.testing import assert_close
from toys import SGD, SmallCNN, equal, fitted, linear, part, uneven

from fedlit.aggregation import Upload
from fedlit.methods import FD


@pytest.mark.parametrize(("gamma", "holds"), [(0.0, True), (0.5, False)])
def test_with_gamma_0_and_only_then_it_is_local_training(gamma, holds):
    alone = fitted(Alone(SmallCNN, SGD), uneven()).personal_states
    fd = fitted(FD(SmallCNN, SGD, gamma=gamma), uneven()).personal_states
    own = [{name: fd[k][name] for name in alone[k]} for k in range(3)]
    assert all(equal(alone[k], own[k]) for k in range(3)) is holds


def one_weight() -> nn.Module:
    return nn.Linear(1, 2)


def teaching(total, holders, number, own=None):
    """A client's method before local training."""
    method = FD(one_weight, PLAIN, gamma=1.0)
    method.total.copy_(tensor(total))
    method.holders.copy_(tensor(holders))
    method.number.fill_(number)
    if own is not None:
        means, counts, sent_for = own
        method.own_means.copy_(tensor(means))
        method.own_counts.copy_(tensor(counts))
        method.own_number.fill_(sent_for)
    method.on_client_start(None)
    return method


SUM = [[1.5, 0.5], [0.2, 0.8]]  # of two clients for label 0, of one for label 1
OWN = [[0.9, 0.1], [0.2, 0.8]]


def test_a_client_leaves_itself_out_by_hand():
    method = teaching(SUM, [2, 1], number=4, own=(OWN, [5, 3], 4))
    assert method.others.tolist() == [1, 0]  # label 1 is its own alone: nobody teaches it
    assert_close(method.teacher[0], tensor([0.6, 0.4]))


@pytest.mark.parametrize("own", [None, (OWN, [5, 3], 3)])
def test_who_sat_the_last_round_out_has_nothing_to_leave_out(own):
    method = teaching(SUM, [2, 1], number=4, own=own)
    assert method.others.tolist() == [2, 1]
    assert_close(method.teacher, tensor([[0.75, 0.25], [0.2, 0.8]]))


def test_who_lacks_a_label_has_nothing_of_it_to_leave_out():
    method = teaching(SUM, [2, 1], number=4, own=([[0.9, 0.1], [0.0, 0.0]], [5, 0], 4))
    assert method.others.tolist() == [1, 1]
    assert_close(method.teacher, tensor([[0.6, 0.4], [0.2, 0.8]]))


def test_the_loss_by_hand():
    """Logits (ln 3, 0): p = (3/4, 1/4). Two samples of label 0, taught (0.6, 0.4); one of label 1, taught by nobody."""
    method = teaching(SUM, [2, 1], number=4, own=(OWN, [5, 3], 4))
    with torch.no_grad():
        method.network.weight.zero_()
        method.network.bias.copy_(tensor([math.log(3), 0.0]))
    loss = method.training_step((torch.zeros(3, 1), tensor([0, 1, 0])), 0)
    labels = -(2 * math.log(0.75) + math.log(0.25)) / 3
    taught = -(0.6 * math.log(0.75) + 0.4 * math.log(0.25)) * 2 / 3
    assert loss.item() == pytest.approx(labels + taught, rel=1e-6)
    method.on_client_end(None)
    assert_close(method.means, tensor([[0.75, 0.25], [0.75, 0.25]]))
    assert method.counts.tolist() == [2, 1]
    assert method.own_number.item() == 5


def test_the_server_adds_up_by_hand():
    method = FD(one_weight, PLAIN)
    current = {"total": torch.ones(2, 2), "holders": tensor([9, 9]), "number": tensor([3])}
    uploads = [
        Upload(0, {"means": tensor([[0.5, 0.5], [0.0, 0.0]]), "counts": tensor([7, 0])}),
        Upload(1, {"means": tensor([[0.25, 0.75], [0.1, 0.9]]), "counts": tensor([1, 1])}),
    ]
    agreed = method.aggregate(iter(uploads), current)
    assert_close(agreed["total"], tensor([[0.75, 1.25], [0.1, 0.9]]))
    assert agreed["holders"].tolist() == [2, 1]
    assert agreed["number"].tolist() == [4]


def plain_fd(data, networks, cohorts, gamma):
    """Algorithm 1, written out; the server sends everybody the mean of the others."""
    sent: dict[int, dict[int, torch.Tensor]] = {}
    for number, cohort in enumerate(cohorts, start=1):
        new = {}
        for k in cohort:
            network, seen = networks[k], {}
            for x, y in batches(data, number, k):
                z = network(x)
                loss = F.cross_entropy(z, y)
                for n, label in enumerate(y.tolist()):
                    others = [means[label] for j, means in sent.items() if j != k and label in means]
                    if others:
                        loss = loss - gamma * (sum(others) / len(others) * z[n].log_softmax(0)).sum() / len(y)
                    seen.setdefault(label, []).append(z[n].detach().softmax(0))
                directions = gradients(network, loss)
                with torch.no_grad():
                    for p, g in zip(network.parameters(), directions, strict=True):
                        p.add_(g, alpha=-RATE)
            new[k] = {label: torch.stack(given).mean(dim=0) for label, given in seen.items()}
        sent = new
    return sent


def test_three_rounds_are_a_plain_loop_in_which_the_server_leaves_everybody_out():
    cohorts = [[0, 1, 2], [0, 2], [0, 1, 2]]
    method = taking_part(FD, cohorts)(linear, PLAIN, gamma=0.7)
    networks = first_networks(method)
    federation = fitted(method, uneven())
    sent = plain_fd(uneven(), networks, cohorts, gamma=0.7)
    for k, state in federation.personal_states.items():
        assert_close(part(state, "network."), networks[k].state_dict(), atol=1e-5, rtol=1e-4)
        for label, mean in sent[k].items():
            assert_close(state["own_means"][label], mean, atol=1e-5, rtol=1e-4)


def test_networks_may_differ():
    federation = fitted(FD(linear, SGD, client_networks={1: Wide}))
    assert "network.second.weight" in federation.personal_states[1]
    assert federation.global_state["holders"].tolist() == [3, 3, 3]
