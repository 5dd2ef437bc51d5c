"""What goes over the wire: tensors, numbers, strings and containers of them, as bytes that run no code when read."""

from hashlib import sha256
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlit.records.plain_values import from_bytes, to_bytes

unpack = from_bytes
PROTOCOL = 2  # of what messages mean; hosts that differ refuse each other


class Letter(NamedTuple):
    """What one client is sent: what everybody is, and what is its own."""

    common: bytes
    own: bytes

    @property
    def digest(self) -> str:
        """Two letters that ask for the same have the same."""
        return sha256(sha256(self.common).digest() + sha256(self.own).digest()).hexdigest()


def pack(value: Any) -> bytes:
    """A value as bytes; of a tensor that is a view, no more than the view."""
    return to_bytes(compact(value))


def to(value: Any, device: torch.device) -> Any:
    """Tensors of containers on a device."""
    if isinstance(value, Tensor):
        return value.to(device)
    return {key: to(entry, device) for key, entry in value.items()} if isinstance(value, dict) else value


def compact(value: Any) -> Any:
    """Each tensor by itself, on the CPU: torch would save all of the memory that a view lies in."""
    if isinstance(value, Tensor):
        return value.detach().cpu().clone(memory_format=torch.preserve_format)
    if isinstance(value, dict):
        return {key: compact(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(compact, value))
    return value
