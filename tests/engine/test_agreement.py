"""`trainer.aggregator`: it reaches every method that averages, also a user's own, and is never ignored in silence."""

import pytest
import torch
from torch import nn
from toys import SGD, SmallCNN, TrunkAndHead, equal, fitted, linear, toy_data

from fedlit import FedAvg, FedProx, FineTuned, LocalOnly
from fedlit.aggregation import Krum, Mean, Median, NormClipping, TrimmedMean, median, weighted_mean
from fedlit.methods import DLAD, FML, FedFusion, FedMMD, MixtureOfExperts


class Spy:
    """A rule of a user's own, which notes what it is given."""

    def __init__(self):
        self.asked = []

    def __call__(self, uploads, current):
        held = list(uploads)
        self.asked.append((held, current))
        return median(held)


class Fused(nn.Module):
    def __init__(self):
        super().__init__()
        self.extractor = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU())
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(144, 3))
        self.feature_shape = (4, 6, 6)


AVERAGING = {
    "FedAvg": lambda: FedAvg(SmallCNN, SGD),
    "FedProx": lambda: FedProx(linear, SGD),
    "FedMMD": lambda: FedMMD(TrunkAndHead, SGD),
    "FedFusion": lambda: FedFusion(Fused, SGD, operator="multi", ema=0.0),
    "FML": lambda: FML(linear, SmallCNN, SGD),
    "FineTuned": lambda: FineTuned(linear, SGD, finetune_epochs=1),
    "MixtureOfExperts": lambda: MixtureOfExperts(linear, SGD, epochs=1),
}


@pytest.mark.parametrize("method", AVERAGING)
def test_every_method_that_averages_goes_by_the_rule(method):
    rule = Spy()
    federation = fitted(AVERAGING[method](), num_rounds=2, aggregator=rule)
    uploads, _ = rule.asked[-1]
    assert len(rule.asked) == 3  # once before the first round, on a copy
    assert [upload.client for upload in uploads] == [0, 1, 2]
    wanted = median(uploads)
    assert equal({name: federation.global_state[name] for name in wanted}, wanted)
    assert not equal(wanted, weighted_mean(uploads))


def test_the_mean_as_a_rule_has_the_bits_of_no_rule_at_all():
    states = []
    for rule in (None, Mean()):
        torch.manual_seed(0)
        states.append(fitted(FedAvg(SmallCNN, SGD), num_rounds=2, aggregator=rule).global_state)
    assert equal(*states)


def test_fedfusion_smooths_what_the_rule_made_of_lam():
    rule = Spy()
    federation = fitted(FedFusion(Fused, SGD, operator="multi", ema=0.5), num_rounds=2, aggregator=rule)
    uploads, current = rule.asked[-1]
    lam = "network.fusion.lam"
    assert torch.equal(federation.global_state[lam], 0.5 * current[lam] + 0.5 * median(uploads)[lam])


class Combines(FedAvg):
    def aggregate(self, uploads, current):
        agreed = self.combine(uploads, current)
        self.log("moved", sum((agreed[name] - current[name]).abs().sum() for name in agreed))
        return agreed


class AsksAbove(FedAvg):
    def aggregate(self, uploads, current):
        return super().aggregate((upload for upload in uploads), current)


class Ignores(FedAvg):
    def aggregate(self, uploads, current):
        return weighted_mean(uploads)


@pytest.mark.parametrize("method", [Combines, AsksAbove])
def test_a_users_own_aggregate_goes_by_the_rule_if_it_combines(method):
    rule = Spy()
    federation = fitted(method(linear, SGD), num_rounds=1, aggregator=rule)
    assert equal(federation.global_state, median(rule.asked[-1][0]))


def test_a_rule_that_is_a_module_does_not_become_a_part_of_the_method():
    class Learned(nn.Linear):
        def forward(self, uploads, current):
            return weighted_mean(uploads)

    federation = fitted(FedAvg(linear, SGD), num_rounds=1, aggregator=Learned(2, 2))
    assert federation.global_state.keys() == FedAvg(linear, SGD).state_dict().keys()


def test_a_development_run_takes_as_many_clients_as_the_rule_needs():
    rule = Spy()
    rule.fewest = 5
    fitted(FedAvg(linear, SGD), toy_data(num_clients=6), aggregator=rule, fast_dev_run=True)
    assert len(rule.asked[-1][0]) == 5


def failing(uploads, current):
    raise KeyError("x")


@pytest.mark.parametrize(
    ("model", "rule", "told"),
    [
        (Ignores, Median(), r"`trainer.aggregator` Median would be ignored: `aggregate` of Ignores .*`self.combine"),
        (LocalOnly, Median(), r"`trainer.aggregator` Median would never be asked: LocalOnly averages nothing"),
        (FedAvg, Krum(1), r"`trainer.aggregator` Krum needs 5 uploads in a round, but a round has 3 clients"),
        (FedAvg, TrimmedMean(0.3), r"TrimmedMean needs 4 uploads in a round, but a round has 3 clients"),
        (FedAvg, failing, r"`trainer.aggregator` failing, .*: KeyError: 'x'"),
        (FedAvg, median, r"`trainer.aggregator` median, .*: TypeError: median\(\) takes 1 positional"),
        (FedAvg, lambda uploads, current: {}, r"`trainer.aggregator` <lambda>, .*: missing 'network.1.bias'"),
    ],
)
def test_a_rule_that_would_be_ignored_or_cannot_work_is_refused_before_the_first_round(model, rule, told):
    with pytest.raises(ValueError, match=told):
        fitted(model(linear, SGD), aggregator=rule)


def test_dlad_which_collects_is_refused_by_name():
    with pytest.raises(ValueError, match="would never be asked: DLAD averages nothing"):
        fitted(DLAD(linear, SGD), toy_data(public=0.5), aggregator=Median())


def test_a_fraction_of_clients_that_is_too_small_for_the_rule_is_refused():
    data = toy_data(num_clients=6)
    fitted(FedAvg(linear, SGD), data, num_rounds=1, aggregator=Krum(1))
    with pytest.raises(ValueError, match=r"Krum needs 5 uploads .* has 3 clients; see `trainer.fraction_fit`"):
        fitted(FedAvg(linear, SGD), data, fraction_fit=0.5, aggregator=Krum(1))


def test_a_method_that_ignores_rules_runs_where_none_is_given():
    fitted(Ignores(linear, SGD), num_rounds=1)


class OneLies(FedAvg):
    """The first client sends the opposite of its update, a hundred times."""

    def on_client_start(self, client):
        self.received = [p.detach().clone() for p in self.parameters()]

    @torch.no_grad()
    def on_client_end(self, client):
        if client.id == 0:
            for p, w in zip(self.parameters(), self.received, strict=True):
                p.copy_(w - 100 * (p - w))


def accuracy(rule) -> float:
    torch.manual_seed(0)
    data = toy_data(size=150, num_clients=5)
    federation = fitted(OneLies(linear, SGD), data, aggregator=rule)
    return federation.state.scores.last["acc/global_on_pooled"]["mean"]


@pytest.mark.parametrize("rule", [Median(), Krum(1), TrimmedMean(0.2), NormClipping()], ids=lambda r: type(r).__name__)
def test_a_rule_learns_where_the_mean_is_led_astray_by_one_of_five(rule):
    assert accuracy(rule) > 0.8
    assert accuracy(None) < 0.6
