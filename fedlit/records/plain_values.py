"""Values that a checkpoint or a message can hold: torch reads them without running code."""

import io
from typing import Any

import numpy as np
import torch
from torch import Tensor

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)


def is_plain(value: Any) -> bool:
    """Whether a value can be saved as it is: tensors, numbers, strings, and dicts, lists and tuples of them.

    Example:
        >>> is_plain({"step": 3, "factors": [0.5, None]}), is_plain({"rule": print})
        (True, False)
    """
    if isinstance(value, dict):
        return all(is_plain(key) and is_plain(entry) for key, entry in value.items())
    if isinstance(value, list | tuple):
        return all(map(is_plain, value))
    return isinstance(value, (Tensor, *PLAIN)) and not isinstance(value, np.generic)


def to_bytes(value: Any) -> bytes:
    """A plain value as bytes."""
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return buffer.getvalue()


def from_bytes(data: bytes, device: torch.device | str = "cpu", most: int | None = None) -> Any:
    """A plain value, without running code; anything else, or more bytes than `most`, is refused."""
    if most is not None and len(data) > most:
        raise ValueError(f"the message has {len(data)} bytes, at most {most} were expected.")
    value = torch.load(io.BytesIO(data), weights_only=True, map_location=device)
    if not is_plain(value):
        raise ValueError("the message holds what is neither tensor, number nor string.")
    return value
