"""`trainer.aggregator`: it reaches every method that averages, also a user's own, and is never ignored in silence."""

import pytest
from every_method import Normalised
from toys import SGD, SmallCNN, TrunkAndHead, equal, fitted, linear, seeded, toy_data

from fedlit import FedAvg, FedProx, FineTuned, LocalOnly
from fedlit.aggregation import Krum, Mean, Median, TrimmedMean, weighted_mean
from fedlit.data.client import SERVER
from fedlit.engine.aggregation import RuleFailed
from fedlit.methods import FML, FedFusion, FedMMD, MixtureOfExperts


class Spy:
    """A rule of a user's own, which notes what it is given."""

    def __init__(self):
        self.asked = []

    def __call__(self, uploads, current):
        held = list(uploads)
        self.asked.append((held, current))
        return Median()(held, {})


AVERAGING = {
    "FedAvg": lambda: FedAvg(SmallCNN, SGD),
    "FedProx": lambda: FedProx(linear, SGD),
    "FedMMD": lambda: FedMMD(TrunkAndHead, SGD),
    "FedFusion": lambda: FedFusion(Normalised, SGD, operator="multi", ema=0.0),
    "FML": lambda: FML(linear, SmallCNN, SGD),
    "FineTuned": lambda: FineTuned(linear, SGD, finetune_epochs=1),
    "MixtureOfExperts": lambda: MixtureOfExperts(linear, SGD, epochs=1),
}


@pytest.mark.parametrize("method", AVERAGING)
def test_every_method_that_averages_goes_by_the_rule(method):
    rule = Spy()
    federation = fitted(AVERAGING[method](), num_rounds=2, aggregator=rule)
    uploads, _ = rule.asked[-1]
    assert len(rule.asked) == 2
    assert [upload.client for upload in uploads] == [0, 1, 2]
    wanted = Median()(uploads, {})
    assert equal({name: federation.global_state[name] for name in wanted}, wanted)
    assert not equal(wanted, weighted_mean(uploads))


def test_the_mean_as_a_rule_has_the_bits_of_no_rule_at_all():
    runs = [fitted(seeded(FedAvg, SmallCNN, SGD), num_rounds=2, aggregator=rule) for rule in (None, Mean())]
    assert equal(*(federation.global_state for federation in runs))


class Combines(FedAvg):
    def aggregate(self, uploads, current):
        agreed = self.combine(uploads, current)
        self.log("moved", sum((agreed[name] - current[name]).abs().sum() for name in agreed))
        return agreed


class Ignores(FedAvg):
    def aggregate(self, uploads, current):
        return weighted_mean(uploads)


def test_a_users_own_aggregate_goes_by_the_rule_if_it_combines():
    rule = Spy()
    federation = fitted(Combines(linear, SGD), num_rounds=1, aggregator=rule)
    assert equal(federation.global_state, Median()(rule.asked[-1][0], {}))


def test_a_development_run_takes_as_many_clients_as_the_rule_needs():
    rule = Spy()
    rule.fewest = 5
    fitted(FedAvg(linear, SGD), toy_data(num_clients=6), aggregator=rule, fast_dev_run=True)
    assert len(rule.asked[-1][0]) == 5


def failing(uploads, current):
    raise KeyError("x")


@pytest.mark.parametrize(
    ("model", "rule", "message"),
    [
        (Ignores, Median(), r"`trainer.aggregator` Median would be ignored: `aggregate` of Ignores .*`self.combine"),
        (LocalOnly, Median(), r"`trainer.aggregator` would never be asked: LocalOnly averages nothing"),
        (FedAvg, Krum(1), r"`trainer.aggregator` Krum needs 5 uploads in a round, but a round has 3 clients"),
        (FedAvg, TrimmedMean(0.3), r"TrimmedMean needs 4 uploads in a round, but a round has 3 clients"),
        (FedAvg, failing, r"`trainer.aggregator` failing could not combine the 3 uploads of round 1: KeyError: 'x'"),
        (FedAvg, weighted_mean, r"`trainer.aggregator` weighted_mean could .*: TypeError: weighted_mean\(\) takes 1"),
        (FedAvg, lambda uploads, current: {}, r"`trainer.aggregator` <lambda> could .* missing 'network.1.bias'"),
    ],
)
def test_a_rule_that_would_be_ignored_or_cannot_work_is_refused(model, rule, message):
    with pytest.raises((ValueError, RuleFailed), match=message):
        fitted(model(linear, SGD), aggregator=rule)


def test_a_fraction_of_clients_that_is_too_small_for_the_rule_is_refused():
    data = toy_data(num_clients=6)
    fitted(FedAvg(linear, SGD), data, num_rounds=1, aggregator=Krum(1))
    with pytest.raises(ValueError, match=r"Krum needs 5 uploads .* has 3 clients; see `trainer.fraction_fit`"):
        fitted(FedAvg(linear, SGD), data, fraction_fit=0.5, aggregator=Krum(1))


class Rounds(FedAvg):
    """Notes whose round it aggregates."""

    def aggregate(self, uploads, current):
        self.rounds = [*getattr(self, "rounds", []), (self.client.id, self.client.round)]
        return super().aggregate(uploads, current)


@pytest.mark.parametrize("timeout", [None, 60.0])
def test_aggregate_knows_the_round_wherever_clients_were_trained(timeout):
    method = Rounds(linear, SGD)
    fitted(method, num_rounds=2, client_timeout=timeout)
    assert method.rounds == [(SERVER, 1), (SERVER, 2)]
