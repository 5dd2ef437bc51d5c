"""`trainer.server_optimizer`: it steps along what uploads come to, for every method that combines."""

from functools import partial

import pytest
import torch
from test_agreement import AVERAGING, Ignores
from torch import nn
from torch.testing import assert_close
from toys import SGD, SmallCNN, fitted, linear

from fedlit import FedAvg, LocalOnly
from fedlit.aggregation import weighted_mean
from fedlit.engine.aggregation import RuleFailed
from fedlit.server_optimizers import FedAdagrad, FedAdam, FedYogi

RATE_1 = partial(torch.optim.SGD, lr=1.0)
ADAM = partial(FedAdam, lr=0.05)
# One network, one of two, one in the first of several stages.
each_kind = pytest.mark.parametrize("method", ["FedAvg", "FML", "MixtureOfExperts"])


def run(method=lambda: FedAvg(SmallCNN, SGD), **options):
    torch.manual_seed(7)
    return fitted(method(), **options)


@each_kind
def test_sgd_of_rate_1_is_no_server_optimizer_at_all(method):
    plain = run(AVERAGING[method], num_rounds=2).global_state
    assert_close(run(AVERAGING[method], num_rounds=2, server_optimizer=RATE_1).global_state, plain)


@each_kind
def test_sgd_of_half_the_rate_goes_half_of_the_way(method):
    """Of one round: later ones begin elsewhere. Buffers and counters are the mean as ever."""
    full = run(AVERAGING[method], num_rounds=1).state
    half = run(AVERAGING[method], num_rounds=1, server_optimizer=partial(torch.optim.SGD, lr=0.5)).state
    trained = {name for name, p in full.module.named_parameters() if p.requires_grad} & set(full.shared)
    assert trained
    for name in full.shared:
        before = full.initial[name]
        expected = full.global_state[name]
        if name in trained:
            expected = before + 0.5 * (expected - before)
        assert_close(half.global_state[name], expected)


class Noting(FedAvg):
    def aggregate(self, uploads, current):
        held = list(uploads)
        self.rounds = [*getattr(self, "rounds", []), (current, weighted_mean(held))]
        return self.combine(held, current)


def by_hand(kind, rounds, name, lr=0.05, b1=0.9, b2=0.99, tau=1e-3):
    """Algorithm 2 of the paper, written out for one tensor."""
    x = rounds[0][0][name]
    m = torch.zeros_like(x)
    v = torch.full_like(x, tau * tau)
    for _, combined in rounds:
        delta = combined[name] - x
        m = b1 * m + (1 - b1) * delta
        if kind is FedAdam:
            v = b2 * v + (1 - b2) * delta**2
        elif kind is FedYogi:
            v = v - (1 - b2) * delta**2 * torch.sign(v - delta**2)
        else:
            v = v + delta**2
        x = x + lr * m / (v**0.5 + tau)
    return x


@pytest.mark.parametrize(("kind", "b1"), [(FedAdam, 0.9), (FedYogi, 0.9), (FedAdagrad, 0.0)])
def test_two_rounds_are_algorithm_2_by_hand(kind, b1):
    method = Noting(linear, SGD)
    state = fitted(method, num_rounds=2, server_optimizer=partial(kind, lr=0.05)).global_state
    for name in state:
        assert_close(state[name], by_hand(kind, method.rounds[-2:], name, b1=b1))


def test_momentum_is_fedavgm_by_hand():
    method = Noting(linear, SGD)
    state = fitted(method, num_rounds=2, server_optimizer=partial(torch.optim.SGD, lr=1.0, momentum=0.9)).global_state
    (first, mean_1), (second, mean_2) = method.rounds[-2:]
    for name in state:
        moved = (first[name] - mean_1[name]) * 0.9 + (second[name] - mean_2[name])
        assert_close(state[name], second[name] - moved)
        assert not torch.allclose(state[name], mean_2[name], rtol=1e-3)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 64)
        self.b = self.a
        self.out = nn.Linear(64, 3)

    def forward(self, x):
        return self.out(self.b(self.a(x.flatten(1))))


def test_a_parameter_with_two_names_moves_under_both_and_a_frozen_one_not_at_all():
    method = FedAvg(Tied, partial(torch.optim.SGD, lr=0.1))
    method.network.out.bias.requires_grad_(False)
    before = method.network.out.bias.detach().clone()
    decaying = partial(torch.optim.SGD, lr=0.5, weight_decay=0.1)
    state = fitted(method, num_rounds=1, server_optimizer=decaying).global_state
    assert torch.equal(state["network.a.weight"], state["network.b.weight"])
    assert torch.equal(state["network.out.bias"], before)


class Twice(FedAvg):
    def aggregate(self, uploads, current):
        held = list(uploads)
        self.combine(held, current)
        return self.combine(held, current)


READY = torch.optim.SGD([torch.zeros(1)], lr=0.1)


@pytest.mark.parametrize(
    ("method", "optimizer", "message"),
    [
        (LocalOnly, RATE_1, r"`trainer.server_optimizer` would never be asked: LocalOnly averages nothing that trains"),
        (Ignores, RATE_1, r"`trainer.server_optimizer` would be ignored: `aggregate` of Ignores .*`self.combine"),
        (Twice, RATE_1, r"`trainer.server_optimizer`: `aggregate` may combine uploads only once"),
        (FedAvg, partial(torch.optim.SGD, lr=-1.0), r"`trainer.server_optimizer`: Invalid learning rate: -1.0"),
        (FedAvg, partial(FedAdam, lr=float("nan")), r"^`trainer.server_optimizer.lr` must be a finite number, got nan"),
        (FedAvg, partial(FedYogi, betas=(0.9, 1.0)), r"^`trainer.server_optimizer`: beta2 must lie in .*, got 1.0"),
        (FedAvg, torch.optim.LBFGS, r"`trainer.server_optimizer` could not take a step: .*closure"),
        (FedAvg, READY, r"`trainer.server_optimizer` must be a class or function that builds"),
    ],
)
def test_what_cannot_step_or_would_be_ignored_is_refused_in_the_first_round(method, optimizer, message):
    with pytest.raises((ValueError, TypeError, RuleFailed), match=message):
        fitted(method(linear, SGD), server_optimizer=optimizer)


def test_a_run_does_not_go_on_with_another_kind_of_state(tmp_path):
    options = {"default_root_dir": str(tmp_path)}
    run(num_rounds=1, server_optimizer=ADAM, **options)
    message = r"`trainer.server_optimizer` is Adam and cannot use the state of FedAdam in `--ckpt_path` .*last.ckpt"
    with pytest.raises(ValueError, match=message):
        run(server_optimizer=torch.optim.Adam, ckpt_path="last", **options)
    run(num_rounds=2, ckpt_path="last", **options)  # without one it may, with a notice
