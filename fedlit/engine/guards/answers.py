"""What comes back from a client in a process of its own or on another host, read without running code."""

import io
from typing import Any

import torch

from fedlit.engine.module.isolation import failed
from fedlit.engine.plan import is_plain
from fedlit.records.round_record import LONGEST_REASON, Failure


def unpack_plain(data: bytes, device: torch.device | str = "cpu", most: int | None = None) -> Any:
    """Tensors, numbers, strings and containers of them from bytes; what is too large or anything else is refused.

    Args:
        data: As it came.
        device: Where tensors go.
        most: Bytes that it may have; None is any number.
    """
    if most is not None and len(data) > most:
        raise ValueError(f"the message has {len(data)} bytes, at most {most} were expected.")
    value = torch.load(io.BytesIO(data), weights_only=True, map_location=device)
    if not is_plain(value):
        raise ValueError("the message holds what is neither tensor, number nor string.")
    return value


def unusable(error: Exception) -> Failure:
    """Why an answer cannot be used."""
    problem = failed(error)
    return Failure(f"its answer cannot be used: {problem.reason}"[:LONGEST_REASON], problem.details)
