"""The yardsticks of `make bench` do the same work; no test here looks at a clock."""

from dataclasses import replace

import pytest
import torch

from benchmarks.workloads import WORKLOADS
from fedlit.rng import generator

WORK = {  # with fewer clients and samples
    "W1": replace(WORKLOADS["W1"], num_clients=2, per_round=2, samples=36),
    "W2": replace(WORKLOADS["W2"], num_clients=20, per_round=4),
    "W3": replace(WORKLOADS["W3"], num_clients=2, per_round=2, samples=40),
}


def networks(loop) -> list[torch.nn.Module]:
    return [loop.network, *getattr(loop, "personal", [])]


def parameters(loop) -> list[torch.Tensor]:
    return [parameter.detach().clone() for network in networks(loop) for parameter in network.parameters()]


def of_one_start(work) -> list:
    """The plain loop and the tight one, with the same first weights and order of batches."""
    loops = []
    for build in (work.loop, work.tight_loop):
        torch.manual_seed(3)
        loops.append(build(None))
        loops[-1].shuffle = lambda round, k: generator(7, "batches", round, k)
    return loops


@pytest.mark.parametrize("name", ["W1", "W2", pytest.param("W3", marks=pytest.mark.slow)])
def test_the_tight_loop_ends_where_the_plain_one_does(name):
    plain, tight = of_one_start(WORK[name])
    first = parameters(plain)
    for number in (1, 2):
        for loop in (plain, tight):
            loop.round(number, range(WORK[name].per_round))
    for before, ours, theirs in zip(first, parameters(tight), parameters(plain), strict=True):
        assert torch.allclose(ours, theirs, atol=1e-6)
        assert not torch.allclose(before, theirs, atol=1e-6)


def test_the_tight_loop_looks_at_the_test_images():
    _, tight = of_one_start(WORK["W2"])
    assert len(tight.test[1]) == 1000
    tight.round(1, range(4))
    right = tight.network(tight.test[0]).argmax(dim=1) == tight.test[1]
    assert tight.accuracy == pytest.approx(right.float().mean().item())
    assert tight.accuracy > 0.2  # better than chance, after one round


@pytest.mark.parametrize("name", [name for name, work in WORKLOADS.items() if work.own])
def test_a_user_s_own_network_has_the_layers_of_ours(name):
    work = WORKLOADS[name]
    theirs, ours = work.own(), work.network()
    ours.load_state_dict(dict(zip(ours.state_dict(), theirs.state_dict().values(), strict=True)))
    x = torch.randn(3, 1, 28, 28)
    assert torch.allclose(theirs(x), ours(x), atol=1e-6)
