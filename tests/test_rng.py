"""Random streams: what is drawn inside depends on the seed alone, and outside nothing has moved."""

import random

import numpy as np
import pytest
import torch

from fedlit.rng import isolated


def drawn() -> list[float]:
    """One number of each global generator."""
    return [torch.rand(1).item(), np.random.random(), random.random()]


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def test_outside_no_generator_has_moved():
    seed_all(1)
    undisturbed = [drawn(), drawn()]
    seed_all(1)
    before = drawn()
    with isolated(5):
        drawn()
    assert [before, drawn()] == undisturbed


def test_without_isolation_they_have_moved():
    seed_all(1)
    undisturbed = [drawn(), drawn()]
    seed_all(1)
    drawn()
    drawn()
    assert all(one != other for one, other in zip(drawn(), undisturbed[1], strict=True))


def test_an_error_inside_leaves_the_outside_as_it_was():
    seed_all(1)
    undisturbed = drawn()
    seed_all(1)
    with pytest.raises(ZeroDivisionError), isolated(5):
        drawn()[0] / 0
    assert drawn() == undisturbed
