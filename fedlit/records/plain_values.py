"""Values that a checkpoint can hold: torch reads them without running code."""

import io
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
MAPPINGS = {kind.__name__: kind for kind in (dict, OrderedDict, Counter)}
SEQUENCES = {kind.__name__: kind for kind in (tuple, set, frozenset)}
LIBRARIES = ("torch", "torchmetrics", "lightning", "lightning_fabric")
LARGE_TENSOR = 1_000_000  # values; a larger tensor is compared by its identity and version
MARK = "fedlit:"  # before what stands for an array or a container that torch would not read


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


def encoded(value: Any, others: Collection[int] = ()) -> Any:
    """A copy that can be saved, also of arrays and other containers; TypeError names what it cannot be made of.

    Args:
        value: To be saved.
        others: Ids of tensors and parts that belong to the method and are saved with it.

    Example:
        >>> decoded(encoded({"seen": deque([1, 2], maxlen=2)}))
        {'seen': deque([1, 2], maxlen=2)}
    """
    kind = type(value)
    if kind in PLAIN:
        return value
    if id(value) in others:
        raise TypeError("a parameter or buffer of the method")
    if kind is Tensor:
        return value.detach().clone()
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "biufc":
        return MARK, "ndarray", torch.tensor(value), None
    if kind in MAPPINGS.values():
        value = value.items()
    elif kind not in (list, deque, *SEQUENCES.values()):
        article = "an" if kind.__name__[:1].lower() in "aeiou" else "a"
        raise TypeError(f"{article} {kind.__name__}")
    entries = [encoded(entry, others) for entry in value]
    return entries if kind is list else (MARK, kind.__name__, entries, getattr(value, "maxlen", None))


def decoded(value: Any) -> Any:
    """What `encoded` was given."""
    if isinstance(value, Tensor):
        return value.clone()  # a checkpoint is a mapped file
    if isinstance(value, list):
        return [decoded(entry) for entry in value]
    if not isinstance(value, tuple) or value[:1] != (MARK,):
        return value
    _, kind, content, maxlen = value
    if kind in ("ndarray", "generic"):  # version 0.2 wrote numpy's numbers so
        return content.cpu().numpy().copy()[()]
    entries = [decoded(entry) for entry in content]
    if kind == "deque":
        return deque(entries, maxlen)
    return MAPPINGS[kind](dict(entries)) if kind in MAPPINGS else SEQUENCES[kind](entries)


def content_of(value: Any, others: Collection[int] = ()) -> bytes:
    """What a value holds, down to containers and objects of a user's own, to be compared in this process.

    Args:
        value: Of any kind; objects of libraries, and what cannot be pickled, are told apart by identity.
        others: Ids of tensors and parts that are, too.

    Example:
        >>> content_of({"seen": [torch.ones(2)]}) == content_of({"seen": [torch.ones(2)]})
        True
    """
    file = io.BytesIO()
    try:
        _Content(file, others).dump(value)
    except Exception:
        return str(id(value)).encode()
    return file.getvalue()


class _Content(pickle.Pickler):
    def __init__(self, file: io.BytesIO, others: Collection[int]) -> None:
        super().__init__(file, protocol=4)
        self.others = others

    def persistent_id(self, value: Any) -> Any:
        if id(value) in self.others:
            return id(value)
        if isinstance(value, Tensor):
            if value.numel() > LARGE_TENSOR:
                return id(value), value._version
            content = value.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes()
            return str(value.dtype), tuple(value.shape), content
        if type(value) in PLAIN or isinstance(value, Optimizer):
            return None
        return id(value) if library_of(value) in (*LIBRARIES, "fedlit") else None


def library_of(value: object) -> str:
    """The package that its class is from."""
    return type(value).__module__.partition(".")[0]
