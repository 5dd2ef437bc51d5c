"""Uploads as rows of one matrix in float64, and back: what rules compute with that look at whole updates."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from fedlit.aggregation.uploads import State, Upload, wide


def rows(uploads: Sequence[Upload]) -> Tensor:
    """The floating values of each upload, ``[K, D]``."""
    return torch.stack([vector(upload.state, uploads[0].state) for upload in uploads])


def vector(state: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tensor:
    """The floating values of a state, ``[D]``, of the names and in the order of another."""
    parts = [wide(state[name]).flatten() for name, tensor in like.items() if tensor.is_floating_point()]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def unflattened(values: Tensor, like: Mapping[str, Tensor]) -> State:
    """The floating part of a state from its values ``[D]``.

    Example:
        >>> unflattened(torch.tensor([7.0, 8.0]), {"w": torch.ones(1, 2), "n": torch.tensor(3)})
        {'w': tensor([[7., 8.]])}
    """
    state: State = {}
    start = 0
    for name, tensor in like.items():
        if tensor.is_floating_point():
            part = values[start : start + tensor.numel()]
            state[name] = part.reshape(tensor.shape).to(tensor)
            start += tensor.numel()
    return state


def largest_counters(uploads: Sequence[Upload]) -> State:
    """What is not floating is never averaged: of each, elementwise, the largest that was uploaded."""
    names = [name for name, tensor in uploads[0].state.items() if not tensor.is_floating_point()]
    return {name: torch.stack([upload.state[name] for upload in uploads]).amax(dim=0) for name in names}
