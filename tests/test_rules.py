"""Byzantine-robust rules: invariants, numbers worked by hand, and the mean beside them, which is not robust."""

from math import inf, nan

import pytest
import torch
from torch import tensor

from fedlit.aggregation import (
    GeometricMedian,
    Krum,
    Mean,
    Median,
    MultiKrum,
    NormClipping,
    TooFewUploads,
    TrimmedMean,
    Upload,
    fewest_uploads,
    weighted_mean,
)

CURRENT = {"w": torch.zeros(30), "n": tensor(0)}
ROBUST = [Median(), TrimmedMean(0.4), Krum(3), MultiKrum(3), GeometricMedian()]  # all tolerate 3 of 10
RULES = [Mean(), *ROBUST, NormClipping(), NormClipping(0.5)]
IDS = [type(rule).__name__ for rule in RULES]


def honest(number: int = 10) -> list[Upload]:
    """Around 1, at a distance of about 0.5 from each other."""
    return [Upload(k, {"w": 1 + 0.07 * torch.randn(30), "n": tensor(k)}) for k in range(number)]


def with_byzantine(uploads: list[Upload], number: int, lie: float) -> list[Upload]:
    lies = [Upload(k, {"w": torch.full((30,), lie), "n": tensor(0)}) for k in range(number)]
    return [*lies, *uploads[number:]]


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_uploads_that_are_all_equal_come_back(rule):
    state = {"w": torch.randn(30) / 10, "half": torch.randn(4).bfloat16() / 10, "n": tensor(7)}
    agreed = rule([Upload(k, state, weight=k + 1) for k in range(10)], {name: 0 * t for name, t in state.items()})
    if isinstance(rule, NormClipping) and rule.threshold is not None:
        state = {name: t if name == "n" else t * 0.5 / _norm(state) for name, t in state.items()}
    for name, tensor_ in state.items():
        torch.testing.assert_close(agreed[name], tensor_, rtol=1e-2 if name == "half" else 1e-6, atol=1e-7)
        assert agreed[name].dtype == tensor_.dtype


def _norm(state) -> float:
    return float(torch.cat([state["w"], state["half"].float()]).norm())


@pytest.mark.parametrize("rule", RULES[1:], ids=IDS[1:])
def test_the_order_in_which_uploads_come_makes_no_difference_to_a_bit(rule):
    uploads = [Upload(k, upload.state, weight=1 + k / 3) for k, upload in enumerate(honest())]
    shuffled = [uploads[i] for i in torch.randperm(10)]
    assert torch.equal(rule(uploads, CURRENT)["w"], rule(shuffled, CURRENT)["w"])


@pytest.mark.parametrize("lie", [-100.0, 1e30])
@pytest.mark.parametrize("rule", ROBUST, ids=[type(rule).__name__ for rule in ROBUST])
def test_three_byzantine_clients_of_ten_do_not_move_a_robust_rule_beyond_the_honest_ones(rule, lie):
    agreed = rule(with_byzantine(honest(), 3, lie), CURRENT)["w"]
    assert (agreed - 1).norm() < 1  # the honest ones are at about 0.4


@pytest.mark.parametrize("lie", [-100.0, 1e30])
def test_one_byzantine_client_of_ten_moves_the_mean_as_far_as_it_likes(lie):
    agreed = weighted_mean(with_byzantine(honest(), 1, lie))["w"]
    assert (agreed - 1).norm() > 0.1 * abs(lie)


@pytest.mark.parametrize("rule", [Median(), GeometricMedian(), MultiKrum(3)], ids=lambda rule: type(rule).__name__)
def test_six_byzantine_clients_of_ten_move_any_rule(rule):
    assert (rule(with_byzantine(honest(), 6, -100.0), CURRENT)["w"] - 1).norm() > 10


@pytest.mark.parametrize("threshold", [0.5, None])
def test_a_clipped_byzantine_client_moves_the_mean_by_its_share_of_the_threshold(threshold):
    uploads = honest()
    c = threshold or sorted(float(upload.state["w"].double().norm()) for upload in uploads)[5]
    without = NormClipping(threshold)(uploads[1:], CURRENT)["w"] * 9 / 10
    moved = NormClipping(threshold)(with_byzantine(uploads, 1, 1e30), CURRENT)["w"]
    assert (moved - without).norm() < 1.1 * c / 10


def test_clipping_by_hand_with_weights():
    uploads = [Upload(0, {"w": tensor([4.0, 5.0])}, weight=1), Upload(1, {"w": tensor([1.0, 1.0])}, weight=3)]
    # From [1, 1]: the first moves by [3, 4] of norm 5, which becomes 1; the second stays.
    agreed = NormClipping(threshold=1.0)(uploads, {"w": tensor([1.0, 1.0])})["w"]
    torch.testing.assert_close(agreed, tensor([1.15, 1.2]))


def test_clipping_at_infinity_is_the_weighted_mean():
    uploads = [Upload(k, upload.state, weight=1 + k) for k, upload in enumerate(honest())]
    torch.testing.assert_close(NormClipping(inf)(uploads, CURRENT)["w"], weighted_mean(uploads)["w"])
    assert not torch.allclose(NormClipping(1.0)(uploads, CURRENT)["w"], weighted_mean(uploads)["w"])


def test_multi_krum_that_keeps_one_is_krum_and_one_that_keeps_all_the_uniform_mean():
    uploads = honest()
    assert torch.equal(MultiKrum(2, num_kept=1)(uploads, CURRENT)["w"], Krum(2)(uploads, CURRENT)["w"])
    everybody = MultiKrum(2, num_kept=10)(uploads, CURRENT)["w"]
    torch.testing.assert_close(everybody, weighted_mean(uploads)["w"])
    assert not torch.allclose(MultiKrum(2)(uploads, CURRENT)["w"], everybody)


def test_krum_returns_one_of_the_uploads_and_of_equals_the_first():
    uploads = honest()
    assert any(torch.equal(Krum(3)(uploads, CURRENT)["w"], upload.state["w"]) for upload in uploads)
    values = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]  # 1 to 4 are equally near to their three nearest
    sent = [Upload(k, {"w": tensor([v])}) for k, v in enumerate(values)]
    assert Krum(1)([*reversed(sent)], {})["w"] == tensor([1.0])


def test_the_geometric_median_is_where_the_pulls_cancel_out():
    uploads = [Upload(k, {"w": torch.randn(3)}, weight=1 + k) for k in range(5)]
    v = GeometricMedian(steps=400)(uploads, {"w": torch.zeros(3)})["w"]
    away = [upload.weight * (upload.state["w"] - v) / (upload.state["w"] - v).norm() for upload in uploads]
    assert sum(away).norm() < 1e-3
    assert sum(upload.weight * (upload.state["w"] - v) for upload in uploads).norm() > 0.1  # those of a mean do not


@pytest.mark.parametrize("lie", [nan, inf, -inf])
@pytest.mark.parametrize("rule", RULES[1:], ids=IDS[1:])
def test_an_upload_that_is_not_finite_does_not_reach_the_model(rule, lie):
    """Of ten, one: the others agree on 1, and clipping moves no further than its threshold."""
    sent = [Upload(k, {"w": torch.ones(4), "n": tensor(0)}) for k in range(9)]
    sent.append(Upload(9, {"w": tensor([1.0, 1.0, lie, 1.0]), "n": tensor(0)}))
    agreed = rule(sent, {"w": torch.zeros(4), "n": tensor(0)})["w"]
    clipped = 0.25 if isinstance(rule, NormClipping) and rule.threshold == 0.5 else 1.0  # [1, 1, 1, 1] has norm 2
    torch.testing.assert_close(agreed, torch.full((4,), clipped))
    assert not Mean()(sent, {})["w"].isfinite().all()


WEIGHTED = {Mean, NormClipping, GeometricMedian}


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_weights_count_where_a_rule_says_so_and_nowhere_else(rule):
    uploads = honest()
    heavy = [Upload(k, upload.state, weight=100 if k == 0 else 1) for k, upload in enumerate(uploads)]
    same = torch.allclose(rule(uploads, CURRENT)["w"], rule(heavy, CURRENT)["w"])
    assert same != (type(rule) in WEIGHTED)


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_of_counters_the_largest_wins(rule):
    assert rule(honest(), CURRENT)["n"] == 9


@pytest.mark.slow
def test_a_median_of_a_large_layer_can_be_had():
    large = [Upload(k, {"w": torch.full((4_100_000,), float(k))}) for k in range(4)]  # more than `quantile` takes
    assert torch.equal(Median()(large, CURRENT)["w"], torch.full((4_100_000,), 1.5))


@pytest.mark.parametrize(
    ("rule", "needed"), [(Krum(2), 7), (MultiKrum(1), 5), (MultiKrum(1, num_kept=8), 8), (TrimmedMean(0.3), 4)]
)
def test_a_rule_refuses_a_round_that_is_too_small_for_it(rule, needed):
    assert fewest_uploads(rule) == needed
    rule(honest(needed), CURRENT)
    with pytest.raises(TooFewUploads, match=rf"aggregator.\w+` of .* needs {needed} uploads .*, got {needed - 1}"):
        rule(honest(needed - 1), CURRENT)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Krum(0), r"`trainer.aggregator.num_bad` must be at least 1, got 0"),
        (lambda: MultiKrum(1, num_kept=0), r"`trainer.aggregator.num_kept` must be at least 1"),
        (lambda: NormClipping(0.0), r"`trainer.aggregator.threshold` .* above 0, got 0.0"),
        (lambda: NormClipping(float("nan")), r"`trainer.aggregator.threshold` .* above 0, got nan"),
        (lambda: TrimmedMean(0.5), r"`trainer.aggregator.trim` .* \[0, 0.5\), got 0.5"),
        (lambda: TrimmedMean(-0.1), r"`trainer.aggregator.trim` .* \[0, 0.5\), got -0.1"),
        (lambda: GeometricMedian(steps=0), r"`trainer.aggregator.steps` must be at least 1"),
        (lambda: GeometricMedian(smoothing=0.0), r"`trainer.aggregator.smoothing` .* above 0"),
    ],
)
def test_what_cannot_be_a_rule_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("rule", RULES, ids=IDS)
def test_no_upload_at_all_is_refused(rule):
    with pytest.raises(ValueError, match="no client"):
        rule([], CURRENT)


def test_clipping_without_the_one_that_is_not_finite_by_hand():
    sent = [Upload(0, {"w": tensor([nan])}, weight=5), Upload(1, {"w": tensor([2.0])}, weight=1)]
    sent.append(Upload(2, {"w": tensor([8.0])}, weight=3))
    # Norms 2 and 8, their median 5: (1 * 2 + 3 * 5) / 4.
    torch.testing.assert_close(NormClipping()(sent, {"w": torch.zeros(1)})["w"], tensor([4.25]))
    for rule in (NormClipping(), GeometricMedian()):
        with pytest.raises(ValueError, match="no client sent a usable upload"):
            rule(sent[:1], {"w": torch.zeros(1)})
