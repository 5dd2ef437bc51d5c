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


def unflattened(values: Tensor, uploads: Sequence[Upload]) -> State:
    """The state of these floating values ``[D]``; of every counter the largest that was uploaded.

    Example:
        >>> both = [Upload(k, {"w": torch.ones(1, 2), "n": torch.tensor(k)}) for k in (3, 5)]
        >>> unflattened(torch.tensor([7.0, 8.0]), both)
        {'w': tensor([[7., 8.]]), 'n': tensor(5)}
    """
    state: State = {}
    start = 0
    for name, tensor in uploads[0].state.items():
        if tensor.is_floating_point():
            part = values[start : start + tensor.numel()]
            state[name] = part.reshape(tensor.shape).to(tensor)
            start += tensor.numel()
        else:
            state[name] = largest(name, uploads)
    return state


def largest(name: str, uploads: Sequence[Upload]) -> Tensor:
    """Of a counter, elementwise."""
    return torch.stack([upload.state[name] for upload in uploads]).amax(dim=0)
