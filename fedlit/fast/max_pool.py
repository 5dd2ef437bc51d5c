"""Max-pooling on a CPU, to PyTorch's bits in less of its time."""

import math
from functools import reduce
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class MaxPool(nn.MaxPool2d):
    """PyTorch's of square windows, to the bit; faster on a CPU where a window is 2x2, or nothing is trained."""

    kernel_size: int
    stride: int
    padding: int

    __jit_unused_properties__ = ("_is_plain",)

    def forward(self, x: Tensor) -> Tensor:
        if torch.jit.is_scripting():
            return F.max_pool2d(x, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode)
        return self._pooled(x)

    @torch.jit.unused
    def _pooled(self, x: Tensor) -> Tensor:
        if type(x) is not Tensor:  # what traces a network, as torch.fx does, cannot tell its device or shape
            return super().forward(x)
        if not self._is_plain or x.device.type != "cpu" or torch._C._are_functorch_transforms_active():
            return super().forward(x)
        if not x.requires_grad:
            return self._without_indices(x)
        is_even = x.shape[-2] % 2 == 0 and x.shape[-1] % 2 == 0
        halves = self.kernel_size == self.stride == 2 and not self.padding and is_even
        # PyTorch's own is fast, too, in the channels-last layout.
        if halves and x.is_contiguous():
            return Halved.apply(x)
        return super().forward(x)

    @property
    def _is_plain(self) -> bool:
        """Whether windows are squares, side by side as they are, and their maxima are all that is wanted."""
        sizes = (self.kernel_size, self.stride, self.padding)
        return (
            all(type(size) is int for size in sizes)
            and self.dilation == 1
            and not self.ceil_mode
            and not self.return_indices
            and 2 * self.padding <= self.kernel_size  # else PyTorch refuses
        )

    def _without_indices(self, x: Tensor) -> Tensor:
        if self.padding:
            x = F.pad(x, [self.padding] * 4, value=-math.inf)
        for dim in (-2, -1):  # rows first, because they are contiguous
            x = reduce(torch.maximum, x.unfold(dim, self.kernel_size, self.stride).unbind(-1))
        return x


class Halved(torch.autograd.Function):
    """The larger of left and right, then of top and bottom; a tie goes to the first, as in PyTorch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        left, right = x[..., ::2], x[..., 1::2]
        rows = torch.maximum(left, right)
        top, bottom = rows[..., ::2, :], rows[..., 1::2, :]
        ctx.save_for_backward(left >= right, top >= bottom)
        return torch.maximum(top, bottom)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        is_left, is_top = ctx.saved_tensors
        rows = _dealt(gradient, is_top, dim=-2)
        return _dealt(rows, is_left, dim=-1)


def _dealt(gradient: Tensor, is_first: Tensor, dim: int) -> Tensor:
    """Twice as long in a dimension: each value goes to the first of its two places or to the second, the other is 0."""
    if torch.is_grad_enabled():  # to be differentiated again
        pair = torch.stack([gradient * is_first, gradient * ~is_first], dim=dim)
        return pair.flatten(dim - 1, dim)
    shape = [*gradient.shape]
    shape[dim] *= 2
    result = gradient.new_empty(shape)
    pairs = result.unflatten(dim, (-1, 2))
    first = pairs.select(dim, 0)
    second = pairs.select(dim, 1)
    torch.mul(gradient, is_first, out=first)
    torch.sub(gradient, first, out=second)
    return result
