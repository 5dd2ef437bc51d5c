"""Kernels are held channels last in fast mode, but only for networks that run so."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from conftest import fitted
from torch import nn

from fedlit import FedAvg, LocalOnly
from fedlit.notices import Notice

SGD = partial(torch.optim.SGD, lr=0.1)


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(1, 4, 3)
        self.second = nn.Conv2d(4, 4, 3, padding=1)
        self.head = nn.Linear(36, 3)

    def features(self, x):
        return F.max_pool2d(F.relu(self.second(self.first(x))), 2)

    def forward(self, x):
        return self.head(self.features(x).flatten(1))


class Viewed(Convolution):
    """As in PyTorch's tutorial."""

    def forward(self, x):
        return self.head(self.features(x).view(-1, 36))


class Standardised(Convolution):
    """Sees its kernels as rows."""

    def forward(self, x):
        scale = self.second.weight.view(4, -1).norm()
        return super().forward(x) / scale


@pytest.mark.parametrize("method", [FedAvg, LocalOnly])
@pytest.mark.parametrize("network", [Viewed, Standardised])
def test_a_network_that_needs_the_ordinary_layout_trains_in_fast_mode(method, network):
    with pytest.warns(Notice, match="`trainer.fast`: kernels of .* keep their layout"):
        fast = fitted(method(network, SGD), num_rounds=1, fast=True)
    weight = fast.state.module.network.first.weight
    assert weight.stride() == torch.empty(4, 1, 3, 3).stride()
    assert fast.state.scores.last


def test_any_other_is_held_channels_last_without_a_word():
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        fast = fitted(FedAvg(Convolution, SGD), num_rounds=1, fast=True)
    weight = fast.state.module.network.first.weight
    assert weight.stride() != torch.empty(4, 1, 3, 3).stride()


class ViewsInItsStep(FedAvg):
    def training_step(self, batch, batch_idx):
        x, y = batch
        features = self.network.features(x).view(-1, 36)
        return F.cross_entropy(self.network.head(features), y)


def test_a_step_that_needs_the_ordinary_layout_is_told_what_to_do():
    with pytest.raises(RuntimeError, match=r"`trainer\.fast` holds kernels channels last: `reshape` takes"):
        fitted(ViewsInItsStep(Convolution, SGD), num_rounds=1, fast=True)
    fitted(ViewsInItsStep(Convolution, SGD), num_rounds=1)
