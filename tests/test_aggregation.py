"""From uploads to what all agree on: numbers worked by hand, and what must not pass."""

import weakref

import pytest
import torch
from torch import tensor

from fedlit.aggregation import Median, TrimmedMean, Upload, defect, weighted_mean


class Tracked(torch.Tensor):
    """A tensor whose life can be watched."""

    @staticmethod
    def __new__(cls):
        return torch.ones(10).as_subclass(cls)


def uploads(*values: float, weights: list[float] | None = None, name: str = "w") -> list[Upload]:
    return [Upload(k, {name: tensor([v])}, (weights or [1] * len(values))[k]) for k, v in enumerate(values)]


@pytest.mark.parametrize("other", [{"w": torch.zeros(1)}, {}, {"w": torch.zeros(3), "v": torch.zeros(1)}])
def test_what_only_some_have_or_in_another_shape_has_no_mean(other):
    message = r"in the upload of client 0 and .* in that of client 1, which have no mean"
    with pytest.raises(ValueError, match=message):
        weighted_mean([Upload(0, {"w": torch.zeros(3)}), Upload(1, other)])


def test_a_weighted_mean_by_hand():
    assert weighted_mean(uploads(1.0, 4.0, 10.0, weights=[1, 2, 1]))["w"] == tensor([4.75])


@pytest.mark.parametrize("weight", [1, 7, 600, 1 / 3])
def test_equal_weights_of_any_size_give_the_bits_of_weight_1(weight):
    values = torch.randn(10, 1000)
    means = [weighted_mean([Upload(k, {"w": v}, w) for k, v in enumerate(values)])["w"] for w in (1, weight)]
    assert torch.equal(*means)


def test_one_upload_is_returned_as_it_is():
    state = {"w": torch.randn(100), "half": torch.randn(5).bfloat16(), "count": tensor(3)}
    mean = weighted_mean([Upload(0, state, 123.0)])
    assert all(torch.equal(mean[name], state[name]) and mean[name].dtype == state[name].dtype for name in state)
    assert mean["w"] is not state["w"]


def test_uploads_are_taken_one_at_a_time():
    alive, most = weakref.WeakSet(), []

    def stream():
        for k in range(5):
            upload = Upload(k, {"w": Tracked()})
            alive.add(upload.state["w"])
            most.append(len(alive))
            yield upload
            del upload

    assert torch.equal(weighted_mean(stream())["w"].as_subclass(torch.Tensor), torch.ones(10))
    assert max(most) <= 3  # the first is kept for its dtype; the last and the next


def test_a_median_and_a_trimmed_mean_by_hand():
    assert Median()(uploads(1.0, 2.0, 3.0, 1000.0), {})["w"] == tensor([2.5])
    assert TrimmedMean(0.2)(uploads(0.0, 1.0, 2.0, 9.0, 1000.0), {})["w"] == tensor([4.0])


EXPECTED = {"w": torch.zeros(2, 3), "n": tensor(0)}


@pytest.mark.parametrize(
    ("state", "weight", "reason"),
    [
        ({"w": torch.zeros(2, 3)}, 1, "missing 'n'"),
        ({**EXPECTED, "private": torch.zeros(1)}, 1, "undeclared 'private'"),
        ({**EXPECTED, "w": torch.zeros(3, 2)}, 1, r"'w' must be \(2, 3\)"),
        ({**EXPECTED, "w": torch.zeros(2, 3).double()}, 1, "got .* torch.float64"),
        ({**EXPECTED, "w": torch.full((2, 3), float("nan"))}, 1, "'w' is not finite"),
        ({**EXPECTED, "w": tensor([[1, 2, 3], [float("-inf"), 1, float("inf")]])}, 1, "'w' is not finite"),
        (EXPECTED, 0, "weight"),
        (EXPECTED, -1, "weight"),
        (EXPECTED, float("nan"), "weight"),
        (EXPECTED, float("inf"), "weight"),
    ],
)
def test_an_unusable_upload_is_named(state, weight, reason):
    with pytest.raises(AssertionError, match=reason):
        assert (problem := defect(Upload(0, state, weight), EXPECTED)) is None, problem


@pytest.mark.parametrize("largest", [1.0, 1e19])
def test_a_sound_upload_passes(largest):
    assert defect(Upload(0, {**EXPECTED, "w": torch.full((2, 3), largest)}), EXPECTED) is None


@pytest.mark.parametrize("values", [[3e38] * 6, [3e38, -3e38] * 3, [0, 0, 0, 0, 0, -2e19]])
def test_values_whose_squares_overflow_cannot_be_computed_with(values):
    state = {**EXPECTED, "w": torch.tensor(values).view(2, 3)}
    assert "whose square overflows torch.float32" in defect(Upload(0, state), EXPECTED)


@pytest.mark.parametrize(("weight", "is_usable"), [(1e9, True), (1.1e9, False), (1e300, False), (1e-8, True)])
def test_no_weight_is_so_large_that_it_is_all_that_counts(weight, is_usable):
    assert (defect(Upload(0, EXPECTED, weight), EXPECTED) is None) == is_usable


@pytest.mark.parametrize("strange", [torch.empty(2, 3, device="meta"), torch.zeros(2, 3).to_sparse()])
def test_tensors_of_strange_kinds_are_named(strange):
    assert "'w' must be on cpu and strided" in defect(Upload(0, {**EXPECTED, "w": strange}), EXPECTED)
