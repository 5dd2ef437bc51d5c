"""Scores of many clients in one pass are those of each by itself."""

import math

import pytest
import torch

from fedlit.engine.scores import scores_by_group


def clients(*sizes):
    n = sum(sizes)
    return torch.randn(n, 3), torch.arange(n) % 3, sizes


@pytest.mark.parametrize("sizes", [(4, 1, 7), (0, 4, 0, 0, 5, 0), (3,), (0,), ()])
def test_every_group_has_the_scores_that_it_has_alone(sizes):
    logits, target, sizes = clients(*sizes)
    together = scores_by_group(logits, target, sizes, {})
    alone = []
    for z, y in zip(logits.split(list(sizes)), target.split(list(sizes)), strict=True) if sizes else ():
        alone += scores_by_group(z, y, [len(y)], {})
    assert [scores.keys() for scores in together] == [scores.keys() for scores in alone]
    assert [list(scores.values()) for scores in together] == [pytest.approx(list(s.values())) for s in alone]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_one_client_s_bad_sample_is_its_own_affair(bad):
    logits, target, sizes = clients(2, 3, 4)
    clean = scores_by_group(logits, target, sizes, {})
    logits[2] = bad
    spoilt = scores_by_group(logits, target, sizes, {})
    assert [spoilt[0], spoilt[2]] == [clean[0], clean[2]]
    assert not math.isfinite(spoilt[1]["loss"])
