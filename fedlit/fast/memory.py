"""Memory on a CPU: blocks that the allocator keeps, and images in the layout that small convolutions like."""

import ctypes
import sys

import torch
from torch import Tensor, nn

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # from malloc.h
KEPT, HALF_A_HEAP = 2**30, 2**25


def keep_large_blocks() -> None:
    """A training step frees and wants the same large tensors again; fresh pages would be faulted in each time.

    Blocks of up to a gigabyte come from the heap, and up to a gigabyte at its top is kept. On Linux with glibc, for the
    whole process; elsewhere nothing happens. Results do not change.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    # Before 2.35, glibc took no more than half a heap.
    if mallopt and (mallopt(M_MMAP_THRESHOLD, KEPT) or mallopt(M_MMAP_THRESHOLD, HALF_A_HEAP)):
        mallopt(M_TRIM_THRESHOLD, KEPT)


def lay_out(module: nn.Module, layout: torch.memory_format) -> None:
    """Let convolutions compute in a layout: on a CPU, channels last is faster for small ones.

    Kernels stay as they are, so that whoever looks at parameters finds them in the ordinary layout.
    """
    for part in module.modules():
        if not isinstance(part, nn.Conv2d):
            continue
        hooks = part._forward_pre_hooks
        for key in [key for key, hook in hooks.items() if hook is channels_last]:
            del hooks[key]
        if layout is torch.channels_last:
            part.register_forward_pre_hook(channels_last)


def channels_last(layer: nn.Module, inputs: tuple[Tensor]) -> tuple[Tensor]:
    """What a convolution is given, with images channels last; what it makes of them is so, too."""
    # `torch.jit.script` compiles a hook with its module: it knows tuples by their number of tensors.
    if len(inputs) != 1 or inputs[0].dim() != 4 or not inputs[0].is_cpu:
        return inputs
    # Not `contiguous`: images of one channel are so in both layouts, but their strides tell what comes out.
    return (inputs[0].to(memory_format=torch.channels_last),)
