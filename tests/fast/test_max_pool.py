"""Max-pooling has PyTorch's bits, forward and back."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from fedlit.fast.max_pool import Halved, MaxPool


@pytest.mark.parametrize("shape", [(2, 3, 4, 6), (4, 28, 28), (2, 2, 14, 14)])
def test_halving_is_pytorch_s_pool_to_the_bit(shape):
    x = torch.randn(shape).mul(2).round().requires_grad_()  # many ties
    gradient = torch.randn(*shape[:-2], shape[-2] // 2, shape[-1] // 2)
    (ours,) = torch.autograd.grad(Halved.apply(x), x, gradient)
    (theirs,) = torch.autograd.grad(F.max_pool2d(x, 2), x, gradient)
    assert torch.equal(Halved.apply(x), F.max_pool2d(x, 2))
    assert torch.equal(ours, theirs)
    assert not torch.equal(torch.autograd.grad(F.max_pool2d(x.flip(-1), 2), x, gradient)[0], theirs)  # ties are seen


@pytest.mark.parametrize("size", [7, 8])
def test_a_pool_falls_back_where_windows_are_cut(size):
    x = torch.randn(2, 3, size, size, requires_grad=True)
    assert torch.equal(MaxPool(2, stride=2)(x), F.max_pool2d(x, 2))
    per_sample = torch.func.vmap(torch.func.grad(lambda image: MaxPool(2, stride=2)(image).square().sum()))
    assert torch.allclose(per_sample(x.detach()), torch.autograd.grad(F.max_pool2d(x, 2).square().sum(), x)[0])


def test_relu_after_the_pool_has_the_same_gradients():
    conv, x = nn.Conv2d(1, 4, 3), torch.randn(3, 1, 10, 10)
    before = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2))
    after = nn.Sequential(conv, MaxPool(2, stride=2), nn.ReLU(inplace=True))
    gradients = [torch.autograd.grad(order(x).square().sum(), conv.parameters()) for order in (before, after)]
    assert torch.equal(before(x), after(x))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_a_pool_can_be_differentiated_twice():
    x = torch.randn(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda x: Halved.apply(x).square(), x)


OPTIONS = [
    {"kernel_size": 2, "ceil_mode": True},
    {"kernel_size": 3, "stride": 1, "dilation": 2},
    {"kernel_size": 2, "return_indices": True},
    {"kernel_size": (2, 3)},
    {"kernel_size": 3, "stride": (1, 2)},
    {"kernel_size": 3, "padding": (0, 1)},
    {"kernel_size": 3, "padding": 1},
    {"kernel_size": 2, "stride": 1},
]


@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("options", OPTIONS)
def test_whatever_it_is_asked_for_a_pool_is_pytorch_s(options, trains):
    x = torch.randn(2, 3, 7, 8, requires_grad=trains)
    ours, theirs = MaxPool(**options)(x), nn.MaxPool2d(**options)(x)
    if not options.get("return_indices"):
        ours, theirs = (ours,), (theirs,)
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_a_pool_refuses_what_pytorch_s_does():
    for kind in (MaxPool, nn.MaxPool2d):
        with pytest.raises(RuntimeError, match="pad should be at most half"):
            kind(2, padding=2)(torch.randn(1, 1, 4, 4))
