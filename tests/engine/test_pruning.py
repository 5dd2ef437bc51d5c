"""A trial gets a report of every round, and may end the fit."""

import pytest
from toys import SGD, fitted, linear

from fedlit import FedAvg
from fedlit.callbacks import Pruning


class Trial:
    """Prunes from a step on."""

    def __init__(self, until: int) -> None:
        self.until = until
        self.reported: dict[int, float] = {}

    def report(self, value: float, step: int) -> None:
        self.reported[step] = value

    def should_prune(self) -> bool:
        return max(self.reported) >= self.until


@pytest.mark.parametrize(("until", "rounds"), [(2, 2), (9, 3)])
def test_a_trial_gets_a_report_of_every_round_and_may_end_the_fit(until, rounds):
    trial = Trial(until)
    pruning = Pruning(trial, "loss/global_on_own")
    federation = fitted(FedAvg(linear, SGD), num_rounds=3, callbacks=[pruning])
    assert federation.state.round == rounds
    assert list(trial.reported) == list(range(1, rounds + 1))
    assert pruning.is_pruned == (rounds == 2)
    assert pruning.value == trial.reported[rounds] == federation.state.scores.last["loss/global_on_own"]["mean"]


def test_a_metric_that_is_not_measured_is_not_reported():
    pruning = Pruning(Trial(1), "acc/personal_on_own")
    fitted(FedAvg(linear, SGD), num_rounds=1, callbacks=[pruning])
    assert (pruning.value, pruning.is_pruned) == (None, False)
