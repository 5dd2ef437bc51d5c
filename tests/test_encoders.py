"""Encoders of uploads: what each loses, what it weighs, and what it refuses to decode."""

import pytest
import torch
from torch.testing import assert_close

from fedlit.aggregation import num_bytes
from fedlit.encoders import Float16, Int8, TopK

SIZE = 1000


def drawn(seed=0):
    """Where a client began and where it came to."""
    draw = torch.Generator().manual_seed(seed)
    before = {"w": torch.randn(SIZE, generator=draw)}
    return {"w": before["w"] + 0.1 * torch.randn(SIZE, generator=draw)}, before


def sent_by(encoder, state, before, seed=0):
    return encoder.encode(state, before, torch.Generator().manual_seed(seed))


def received(encoder, state, before, seed=0):
    return encoder.decode(sent_by(encoder, state, before, seed), before)["w"]


# --- what is lost


def test_top_k_of_all_places_loses_not_a_bit_and_of_fewer_it_does():
    state, before = drawn()
    assert torch.equal(received(TopK(1.0), state, before), state["w"])
    assert not torch.equal(received(TopK(0.999), state, before), state["w"])


def test_top_k_sends_the_places_that_moved_furthest_and_no_other():
    state, before = drawn()
    moved = received(TopK(0.1), state, before)
    is_sent = moved != before["w"]
    distance = (state["w"] - before["w"]).abs()
    assert int(is_sent.sum()) == SIZE // 10
    assert distance[is_sent].min() > distance[~is_sent].max()
    assert torch.equal(moved[is_sent], state["w"][is_sent])


def test_int8_is_within_half_a_step_and_at_random_within_one():
    state, before = drawn()
    update = state["w"] - before["w"]
    step = float(sent_by(Int8(), state, before)["w"]["scale"])
    assert step == pytest.approx(float(update.abs().max()) / 127)
    nearest = (received(Int8(), state, before) - state["w"]).abs().max()
    assert 0.45 * step < float(nearest) <= 0.5 * step * 1.001
    random = (received(Int8(stochastic=True), state, before) - state["w"]).abs().max()
    assert 0.9 * step < float(random) <= step * 1.001


def test_rounding_at_random_is_right_in_the_mean_and_to_the_nearest_is_not():
    before = {"w": torch.zeros(20_000)}
    state = {"w": torch.full((20_000,), 0.3)}
    state["w"][0] = 127.0  # a step is 1
    assert float(received(Int8(stochastic=True), state, before)[1:].mean()) == pytest.approx(0.3, abs=0.02)
    assert float(received(Int8(), state, before)[1:].mean()) == 0.0


def test_numbers_by_hand():
    """0.1 in half precision is 1638 / 2^14; of steps of 2, 5 is two and a half, which is rounded to even."""
    one = {"w": torch.ones(1)}
    assert received(Float16(), {"w": torch.tensor([1.1])}, one).item() == 1 + 1638 / 2**14
    before = {"w": torch.tensor([10.0, 10.0, 10.0])}
    state = {"w": torch.tensor([264.0, 15.0, 6.5])}
    assert received(Int8(), state, before).tolist() == [264.0, 14.0, 6.0]
    assert received(TopK(0.4), state, before).tolist() == [264.0, 10.0, 10.0]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("encoder", [Float16(), Int8(), TopK(0.5)])
def test_a_state_comes_back_in_its_own_dtype_and_shape(encoder, dtype):
    before = {"w": torch.arange(6.0).reshape(2, 3).to(dtype), "b": torch.zeros((), dtype=dtype)}
    state = {name: tensor + 1 for name, tensor in before.items()}
    found = encoder.decode(sent_by(encoder, state, before), before)
    assert {name: (t.shape, t.dtype) for name, t in found.items()} == {n: (t.shape, dtype) for n, t in before.items()}
    assert_close(found["b"], state["b"])


@pytest.mark.parametrize("encoder", [Float16(), Int8(), Int8(stochastic=True), TopK()])
def test_what_has_not_moved_has_not_moved_afterwards(encoder):
    _, before = drawn()
    assert torch.equal(received(encoder, before, before), before["w"])


def test_images_of_channels_last_kernels_are_sent_by_the_same_places():
    before = {"w": torch.zeros(2, 3, 4, 4)}
    state = {"w": torch.arange(96.0).reshape(2, 3, 4, 4)}
    turned = {"w": state["w"].to(memory_format=torch.channels_last)}
    for encoder in (TopK(0.1), Int8()):
        assert torch.equal(received(encoder, turned, before), received(encoder, state, before))


# --- bytes


def test_bytes_are_those_of_the_tensors():
    state, before = drawn()
    sizes = {
        type(encoder).__name__: num_bytes(sent_by(encoder, state, before))
        for encoder in (Float16(), Int8(), TopK(0.01))
    }
    assert num_bytes(state) == 4 * SIZE
    assert sizes == {"Float16": 2 * SIZE, "Int8": SIZE + 4, "TopK": 10 * (4 + 4)}


# --- refusals


@pytest.mark.parametrize("fraction", [0, 0.0, -0.1, 1.5])
def test_a_fraction_of_nothing_or_more_than_all_is_refused(fraction):
    with pytest.raises(ValueError, match=rf"`trainer.upload_encoder.fraction` must lie in \(0, 1\], got {fraction}"):
        TopK(fraction)


def test_what_is_no_number_or_no_switch_is_refused():
    with pytest.raises(ValueError, match=r"`trainer.upload_encoder.fraction` must be a finite number, got nan"):
        TopK(float("nan"))
    with pytest.raises(ValueError, match=r"`trainer.upload_encoder.stochastic` must be true or false, got 'yes'"):
        Int8(stochastic="yes")
