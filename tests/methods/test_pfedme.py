"""pFedMe: a personal network near the shared one, which follows it."""

from functools import partial

import pytest
import torch
from by_hand import LOG3, classifier, copied, one_class_each, slope
from toys import SmallCNN, TrunkAndHead, equal, fitted, linear, part, seeded, uneven

from fedlit.methods import PFedMe

SGD = partial(torch.optim.SGD, lr=0.05)


@pytest.mark.parametrize(("lam", "holds"), [(0.0, True), (1.0, False)])
def test_with_lam_0_and_only_then_the_shared_network_does_not_move(lam, holds):
    method = seeded(PFedMe, TrunkAndHead, SGD, lam=lam)
    before = copied(method.network.state_dict())
    federation = fitted(method, uneven())
    assert equal(part(federation.global_state, "network."), before) is holds
    assert not equal(part(federation.personal_states[0], "personal."), before)


@pytest.mark.parametrize(("beta", "holds"), [(0.0, True), (0.5, False)])
def test_with_beta_0_and_only_then_the_server_stays_where_it_is(beta, holds):
    method = seeded(PFedMe, TrunkAndHead, SGD, beta=beta)
    before = copied(method.network.state_dict())
    assert equal(part(fitted(method, uneven()).global_state, "network."), before) is holds


def test_the_server_goes_beta_of_the_way_to_the_mean():
    start = part(seeded(PFedMe, SmallCNN, SGD).state_dict(), "network.")
    whole, half = (
        part(fitted(seeded(PFedMe, SmallCNN, SGD, beta=b), num_rounds=1).global_state, "network.") for b in (1.0, 0.5)
    )
    for name, value in half.items():
        if value.is_floating_point():
            torch.testing.assert_close(value, (start[name] + whole[name]) / 2)
        else:
            assert torch.equal(value, whole[name])


def by_hand(y, epochs, lam, eta, lr, inner_steps):
    """One client, one batch an epoch: theta goes on from where it was, w follows."""
    w = [0.0, LOG3]
    theta = [0.0, LOG3]
    for _ in range(epochs):
        for _ in range(inner_steps):
            d = slope(theta, y)
            theta = [theta[c] - lr * (d[c] + lam * (theta[c] - w[c])) for c in range(2)]
        w = [w[c] - eta * lam * (w[c] - theta[c]) for c in range(2)]
    return theta, w


def test_two_batches_of_three_inner_steps_by_hand():
    numbers = {"lam": 2.0, "eta": 0.1, "inner_steps": 3}
    federation = fitted(PFedMe(classifier, SGD, **numbers), one_class_each(), num_rounds=1, local_epochs=2)
    expected = [by_hand(y, epochs=2, lr=0.05, **numbers) for y in range(2)]
    for y, (theta, _) in enumerate(expected):
        assert federation.personal_states[y]["personal.0.weight"].flatten().tolist() == pytest.approx(theta)
    mean = [(expected[0][1][c] + expected[1][1][c]) / 2 for c in range(2)]
    assert federation.global_state["network.0.weight"].flatten().tolist() == pytest.approx(mean)


def test_the_shared_networks_statistics_are_the_personal_ones():
    federation = fitted(seeded(PFedMe, SmallCNN, SGD), num_rounds=1)
    means = [state["personal.1.running_mean"].double() for state in federation.personal_states.values()]
    torch.testing.assert_close(federation.global_state["network.1.running_mean"], (sum(means) / 3).float())
    assert federation.global_state["network.1.running_mean"].abs().sum() > 0


def test_gradients_are_clipped_in_every_inner_step():
    method = PFedMe(linear, partial(torch.optim.SGD, lr=1.0), lam=0.0, inner_steps=4)
    before = copied(method.personal.state_dict())
    federation = fitted(method, num_rounds=1, local_steps=1, gradient_clip_val=0.01)
    moved = torch.cat(
        [(value - before[name]).flatten() for name, value in part(federation.personal_states[0], "personal.").items()]
    )
    assert 0.01 < moved.norm() <= 0.04 + 1e-6
