"""Rounds over stages: counted from 1 through all of them, however many there are."""

from time import perf_counter
from types import SimpleNamespace

import pytest
import torch

from fedlit.engine.scheduling import MOST_SCHEDULED, Schedule
from fedlit.methods.stage import Stage

STAGES = [Stage("federate"), Stage("local", rounds=1, upload="none"), Stage("mixture", rounds=2, upload="none")]


def schedule(num_rounds: int, lr_schedule=None) -> Schedule:
    options = SimpleNamespace(num_rounds=num_rounds, lr_schedule=lr_schedule, fast_dev_run=False)
    return Schedule(STAGES, options)


def halved(optimizer):
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)


def test_every_round_has_its_stage_and_the_last_of_each_is_known():
    three = schedule(3)
    assert len(three) == 6
    names = [three.stage(number).name for number in range(7)]  # before the first round, the first stage
    assert names == ["federate"] * 4 + ["local"] + ["mixture"] * 2
    assert [number for number in range(1, 7) if three.is_last(number)] == [3, 4, 6]


def test_a_schedule_of_rates_begins_anew_with_every_stage():
    three = schedule(3, halved)
    factors = [three._part(number).lr_factor(number) for number in range(1, 7)]
    assert factors == [1.0, 0.5, 0.25, 1.0, 1.0, 0.5]


def test_a_hundred_million_rounds_are_laid_out_at_once():
    start = perf_counter()
    long = schedule(10**8)
    assert (len(long), long.stage(10**8).name, long.stage(10**8 + 1).name) == (10**8 + 3, "federate", "local")
    assert perf_counter() - start < 1


def test_rates_of_too_many_rounds_are_refused():
    with pytest.raises(
        ValueError, match=r"`trainer.lr_schedule` takes `trainer.num_rounds` of at most 1000000, got 1000001"
    ):
        schedule(MOST_SCHEDULED + 1, halved)


def test_a_rate_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match=r"`trainer.lr_schedule`: it multiplies the learning rate by nan in round 2"):
        schedule(3, lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=float("nan")))
