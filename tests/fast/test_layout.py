"""Convolutions compute channels last in fast mode, but only for methods that run so; parameters stay as they are."""

import warnings
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from toys import fitted

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
    def forward(self, x):
        return self.head(self.features(x).view(-1, 36))


def lays_out(federation):
    """Whether what comes out of a convolution is channels last."""
    z = federation.state.module.network.second(torch.zeros(2, 4, 3, 3))
    return z.stride() != torch.empty(2, 4, 3, 3).stride()


@pytest.mark.parametrize("method", [FedAvg, LocalOnly])
def test_a_network_that_needs_the_ordinary_layout_trains_in_fast_mode(method):
    with pytest.warns(Notice, match="`trainer.fast`: images of .* keep their layout; .*view size"):
        fast = fitted(method(Viewed, SGD), num_rounds=1, fast=True)
    assert not lays_out(fast)
    assert fast.state.scores.last


def without_a_word(method, **options):
    """A fit in fast mode that nobody is left out of."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", Notice)
        return fitted(method, num_rounds=2, min_clients=3, fast=True, **options)


def test_any_other_computes_channels_last_without_a_word():
    fast = without_a_word(FedAvg(Convolution, SGD))
    assert lays_out(fast)
    assert fast.state.module.network.first.weight.is_contiguous()


class ViewsInItsStep(FedAvg):
    def training_step(self, batch, batch_idx):
        x, y = batch
        features = self.network.features(x).view(-1, 36)
        return F.cross_entropy(self.network.head(features), y)


def test_a_step_that_needs_the_ordinary_layout_is_refused_with_what_to_write():
    message = "`trainer.fast` computes images channels last: `reshape` takes what `view` does not"
    with pytest.raises(RuntimeError, match=message):
        fitted(ViewsInItsStep(Convolution, SGD), num_rounds=1, fast=True)


def test_a_network_that_is_taken_out_computes_as_it_was_written():
    fast = without_a_word(FedAvg(Convolution, SGD))
    live = fast.state.module.network
    assert live.second(input=torch.zeros(2, 4, 3, 3)).is_contiguous()  # called by name, it is as it was written
    taken = fast.network()
    assert taken.second(torch.zeros(2, 4, 3, 3)).stride() == torch.empty(2, 4, 3, 3).stride()
    fitted(fast.state.module, num_rounds=1)
    assert not lays_out(fast)  # the method is the same, and in exact mode now
