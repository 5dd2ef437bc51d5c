"""Random streams: what is drawn inside depends on the seed alone, and outside nothing has moved."""

import random

import numpy as np
import pytest
import torch

from fedlit.rng import Stream, isolated


def drawn() -> list[float]:
    """One number of each global generator."""
    return [torch.rand(1).item(), np.random.random(), random.random()]


def seed_all(seed: int) -> None:
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


def test_inside_every_generator_is_seeded_as_by_hand():
    seed_all(5)
    by_hand = drawn()
    seed_all(1)
    with isolated(5):
        assert drawn() == by_hand


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


def test_one_inside_another_goes_on_where_it_was():
    with isolated(5):
        undisturbed = [drawn(), drawn()]
    with isolated(5):
        before = drawn()
        with isolated(6):
            assert drawn() not in undisturbed
        assert [before, drawn()] == undisturbed


def test_an_error_inside_leaves_the_outside_as_it_was():
    seed_all(1)
    undisturbed = drawn()
    seed_all(1)
    with pytest.raises(ZeroDivisionError), isolated(5):
        drawn()[0] / 0
    assert drawn() == undisturbed


def asked(*device):
    raise AssertionError("this creates a context of CUDA")


def test_a_device_that_is_there_but_not_in_use_is_not_asked(monkeypatch):
    """A CPU run on a machine with a GPU creates no context of CUDA, which a forked process could not use."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("get_rng_state", "set_rng_state", "manual_seed", "current_device"):
        monkeypatch.setattr(torch.cuda, name, asked)
    with isolated(5), Stream(6):
        drawn()


@pytest.fixture(params=["cuda", "xpu", "mps"])
def gpu(request, monkeypatch):
    """A generator in the place of an accelerator's current one."""
    generator = torch.Generator()
    accelerator = getattr(torch, request.param)
    available = "is_available" if request.param == "mps" else "is_initialized"
    monkeypatch.setattr(torch.backends.mps if request.param == "mps" else accelerator, available, lambda: True)
    monkeypatch.setattr(accelerator, "get_rng_state", generator.get_state)
    monkeypatch.setattr(accelerator, "set_rng_state", generator.set_state)
    monkeypatch.setattr(accelerator, "manual_seed", generator.manual_seed)
    return generator


def test_the_generator_of_the_device_in_use_is_seeded_inside_and_goes_on_outside(gpu):
    gpu.manual_seed(1)
    undisturbed = torch.rand(2, generator=gpu).tolist()
    gpu.manual_seed(1)
    before = torch.rand(1, generator=gpu).item()
    with isolated(5):
        assert torch.rand(1, generator=gpu).item() == torch.rand(1).item()  # both from seed 5
    assert [before, torch.rand(1, generator=gpu).item()] == undisturbed


def test_a_stream_does_not_move_what_others_draw_on_a_device(gpu):
    """Or the global model of Ditto, APFL and FML with dropout would not be FedAvg's."""
    gpu.manual_seed(1)
    undisturbed = torch.rand(3, generator=gpu).tolist()
    gpu.manual_seed(1)
    own = Stream(7)
    outside, inside = [], []
    for _ in range(3):
        outside.append(torch.rand(1, generator=gpu).item())
        with own:
            inside.append(torch.rand(1, generator=gpu).item())
    assert outside == undisturbed
    assert inside == torch.rand(3, generator=gpu.manual_seed(7)).tolist()
