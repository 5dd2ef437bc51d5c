"""A plain step is the optimiser's, to the bit; a form of update that a user chose stays."""

from functools import partial

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from fedlit import FedAvg
from fedlit.engine.optimisation import PlainStep
from fedlit.fast.steps import clear, is_plain, prepare, step
from fedlit.networks import LeNet5

SGD = partial(torch.optim.SGD, lr=0.05)


UPDATES = [
    SGD,
    partial(SGD, weight_decay=0.1),
    partial(SGD, maximize=True, weight_decay=0.1),
    partial(SGD, momentum=0.9),
    partial(SGD, momentum=0.9, dampening=0.2, weight_decay=0.1),
    partial(SGD, momentum=0.9, nesterov=True),
    torch.optim.Adam,
    partial(torch.optim.Adam, weight_decay=0.1, maximize=True),
    partial(torch.optim.AdamW, betas=(0.8, 0.99), eps=1e-6),
]


def stepped(build, dtype=torch.float32):
    """Two networks after five steps: by `step` and by the optimiser's own; one parameter has no gradient at first."""
    torch.manual_seed(0)
    networks = [nn.Sequential(nn.Linear(5, 3), nn.Tanh(), nn.Linear(3, 3)).to(dtype) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    ours, theirs = (build(network.parameters()) for network in networks)
    prepare(ours, fast=False)
    for number in range(5):
        x = torch.randn(4, 5, dtype=dtype)
        theirs.zero_grad(), clear(ours)
        for network in networks:
            hidden = network[0](x).tanh()
            (hidden if number == 0 else network[2](hidden)).square().sum().backward()
        theirs.step(), step(ours)
    return ours, theirs, networks


@pytest.mark.parametrize("build", UPDATES)
def test_a_plain_step_is_the_optimiser_s_to_the_bit(build):
    ours, theirs, networks = stepped(build)
    assert is_plain(ours)
    for one, other in zip(networks[0].parameters(), networks[1].parameters(), strict=True):
        assert torch.equal(one, other)
        for name, value in theirs.state[other].items():
            assert torch.equal(ours.state[one][name], value)


@pytest.mark.parametrize(
    "build", [partial(torch.optim.Adam, amsgrad=True), torch.optim.RMSprop, partial(SGD, momentum=0.9, foreach=False)]
)
def test_what_is_not_plain_is_stepped_by_the_optimiser(build):
    ours, _, networks = stepped(build)
    assert not is_plain(ours)
    assert torch.equal(networks[0][0].weight, networks[1][0].weight)


def test_another_momentum_would_be_seen():
    _, _, networks = stepped(partial(SGD, momentum=0.9))
    _, _, others = stepped(partial(SGD, momentum=0.8))
    assert not torch.equal(networks[0][0].weight, others[0][0].weight)


def test_a_watched_optimiser_is_stepped_as_it_is():
    method, seen = FedAvg(LeNet5, SGD), []
    optimizer = SGD(method.parameters())
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    assert not is_plain(optimizer)
    descend = PlainStep(Fabric(accelerator="cpu"), method, [optimizer], None)
    descend((torch.randn(2, 3, 32, 32), torch.tensor([0, 1])), 0)
    assert seen == [1]


@pytest.mark.parametrize(
    "build", [partial(torch.optim.SGD, momentum=0.9, weight_decay=0.01), torch.optim.Adam, torch.optim.AdamW]
)
def test_prepared_optimisers_agree(build):
    networks = [nn.Linear(30, 20) for _ in range(3)]
    for network in networks[1:]:
        network.load_state_dict(networks[0].state_dict())
    optimizers = [build(network.parameters(), lr=0.01) for network in networks]
    prepare(optimizers[1], fast=False)
    prepare(optimizers[2], fast=True)
    for _ in range(5):
        x = torch.randn(4, 30)
        for network, optimizer in zip(networks, optimizers, strict=True):
            optimizer.zero_grad()
            network(x).square().sum().backward()
            optimizer.step()
    assert optimizers[1].param_groups[0]["foreach"]
    assert optimizers[2].param_groups[0]["fused"]
    assert torch.equal(networks[0].weight, networks[1].weight)
    assert torch.allclose(networks[0].weight, networks[2].weight, atol=1e-6)


def test_a_user_s_choice_of_update_stays():
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], foreach=False)
    prepare(optimizer, fast=True)
    assert optimizer.param_groups[0]["foreach"] is False
    assert not optimizer.param_groups[0]["fused"]


def test_rates_that_are_tensors_are_left_alone():
    optimizer = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=torch.tensor(0.1))
    prepare(optimizer, fast=False)
    assert optimizer.param_groups[0]["foreach"] is None
