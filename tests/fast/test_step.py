"""A step of plain SGD is the optimiser's; a form of update that a user chose stays."""

from functools import partial

import pytest
import torch
from lightning.fabric import Fabric
from torch import nn

from fedlit import FedAvg
from fedlit.engine.optimisation import PlainStep
from fedlit.fast.sgd import clear, is_plain_sgd, prepare, step
from fedlit.networks import LeNet5

SGD = partial(torch.optim.SGD, lr=0.05)


@pytest.mark.parametrize(
    ("options", "plain"),
    [({}, True), ({"momentum": 0.9}, False), ({"weight_decay": 0.1}, False), ({"maximize": True}, False)],
)
def test_a_plain_step_is_the_optimiser_s_to_the_bit(options, plain):
    networks = [nn.Linear(5, 3) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    ours, theirs = (torch.optim.SGD(network.parameters(), lr=0.3, **options) for network in networks)
    assert is_plain_sgd(ours) == plain
    for _ in range(3):
        x = torch.randn(4, 5)
        theirs.zero_grad(), clear(ours)
        for network in networks:
            network(x).square().sum().backward()
        theirs.step(), step(ours)
    assert torch.equal(networks[0].weight, networks[1].weight) == plain  # it would be wrong for any other


def test_a_watched_optimiser_is_stepped_as_it_is():
    method, seen = FedAvg(LeNet5, SGD), []
    optimizer = SGD(method.parameters())
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    assert not is_plain_sgd(optimizer)
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
