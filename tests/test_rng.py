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
