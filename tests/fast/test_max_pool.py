"""Max-pooling has PyTorch's bits, forward and back."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedlit.networks import MaxPool


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (4, 28, 28), (2, 2, 14, 14)])
def test_halving_is_pytorch_s_pool_to_the_bit(shape):
    x = torch.randn(shape).mul(2).round().requires_grad_()  # many ties
    gradient = torch.randn(*shape[:-2], shape[-2] // 2, shape[-1] // 2)
    pooled = MaxPool(2, stride=2)(x)
    (ours,) = torch.autograd.grad(pooled, x, gradient)
    (theirs,) = torch.autograd.grad(F.max_pool2d(x, 2), x, gradient)
    assert torch.equal(pooled, F.max_pool2d(x, 2))
    assert torch.equal(ours, theirs)
    assert not torch.equal(torch.autograd.grad(F.max_pool2d(x.flip(-1), 2), x, gradient)[0], theirs)  # ties are seen


OPTIONS = [
    {"kernel_size": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 1, "dilation": 2},
    {"kernel_size": 2, "return_indices": True},
    {"kernel_size": (2, 3)},
    {"kernel_size": 3, "stride": (1, 2)},
    {"kernel_size": 3, "padding": (0, 1)},
    {"kernel_size": 2, "stride": 1},
]


@pytest.mark.parametrize("options", OPTIONS)
def test_whatever_it_is_asked_for_a_pool_is_pytorch_s(options):
    x = torch.randn(2, 3, 7, 8)
    ours, theirs = MaxPool(**options)(x), nn.MaxPool2d(**options)(x)
    if not options.get("return_indices"):
        ours, theirs = (ours,), (theirs,)
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
