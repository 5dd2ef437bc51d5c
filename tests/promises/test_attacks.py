"""Attackers among ten clients: rules of `trainer.aggregator` go on learning where the mean does not."""

import pytest

from benchmarks.attacks import ATTACKS, RULES, accuracy

BEARING = [name for name in RULES if name not in ("mean", "norm clipping")]


def measured(rule: str, attack: str, num_bad: int, rounds: int) -> float:
    """After so many rounds with equal parts; 0 where the run died of it."""
    found = accuracy(RULES[rule], attack, num_bad, rounds, alpha=None, seed=1)
    print(f"{rule}, {num_bad} of 10 by {attack}: {found}")
    return found or 0.0


@pytest.mark.parametrize("attack", ["sign_flip", "noise"])
def test_a_median_learns_with_three_attackers_and_a_mean_does_not_with_one(attack):
    assert measured("median", attack, num_bad=3, rounds=2) > 0.5
    assert measured("mean", attack, num_bad=1, rounds=2) < 0.3


@pytest.mark.slow
@pytest.mark.parametrize("num_bad", [1, 3])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("rule", BEARING)
def test_a_rule_that_bears_three_of_ten_keeps_its_accuracy(rule, attack, num_bad):
    assert measured(rule, attack, num_bad, rounds=5) > 0.65
