"""Attributes of a method that the server's side changes: a checkpoint holds plain values, others are refused.

The server's side is `aggregate`, `select_clients`, `download`, callbacks and stages in which the server trains. What
clients change is undone after their local training. An attribute that is None or missing before the server trains
belongs to that training, such as its teachers, and is made anew by the next.
"""

import hashlib
import pickle
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlit.engine.plan import UsageError

Key = tuple[str, str]  # path of a part, name of its attribute
PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
MAPPINGS = (dict, OrderedDict, Counter)
SEQUENCES = (list, tuple, set, frozenset, deque)
MARK = "fedlit:"  # before what a checkpoint cannot hold as it is
HPARAMS = "hparams."
# The engine's own, Lightning's, torch's: saved elsewhere, or not at all.
OWN = {"client", "stage", "received", "num_clients", "fast", "_rule", "_log_sink", "_evaluated", "_evaluated_names"}
OF_LIGHTNING = {*vars(LightningModule()), "_hparams", "_hparams_initial", "_hparams_name"}
LIBRARIES = ("torch", "torchmetrics", "lightning", "lightning_fabric")
LARGE_TENSOR = 1_000_000  # values; a larger tensor is compared by its identity and version
CODE = type | ModuleType | FunctionType | BuiltinFunctionType | MethodType | partial | Enum


class UnserializableAttribute(UsageError):
    """An attribute was changed that no checkpoint can hold."""


class ServerAttributes:
    """Attributes of a method and its parts that have changed since the first fit began.

    Args:
        parts: Of the live module, by path.

    Attributes:
        noted: What a checkpoint holds of them, as of the last complete round: by path and name.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        self.parts = {path: part for path, part in parts.items() if _library(part) not in LIBRARIES}
        self.all_parts = parts
        self.noted: dict[str, dict[str, Any]] = {}
        self._changed: set[Key] = set()  # once changed, always saved: a resumed method may have been made with it
        self._passing: set[Key] = set()  # of the server's training
        self._initial: dict[Key, Any] = {}  # held, or other objects might get their ids
        self._digests: dict[Key, bytes] = {}

    def begin(self) -> None:
        """A fit begins: what callbacks have set by now, they will set again in one that resumes it."""
        self._initial = self._attributes()
        self._digests = self._digests_of(self._initial)

    def note(self) -> None:
        """A round is complete; refuse what it has changed and no checkpoint can hold."""
        self.noted = self.changes()

    def changes(self) -> dict[str, dict[str, Any]]:
        """What has changed, as a checkpoint holds it."""
        now = self._attributes()
        digests = self._digests_of(now)
        keys = self._digests.keys() | digests.keys()
        self._changed |= {key for key in keys if digests.get(key) != self._digests.get(key)}
        state = self._state_ids()
        found: dict[str, dict[str, Any]] = {}
        for path, name in sorted(self._changed - self._passing):
            try:
                found.setdefault(path, {})[name] = _encoded(now.get((path, name)), state)
            except TypeError as error:
                raise UnserializableAttribute(
                    f"`model`: `self.{name}` of {type(self.parts[path]).__name__} was changed outside of clients' "
                    f"training and holds {error}, which no checkpoint can hold: a resumed run would not have it. Keep "
                    "tensors, numbers, strings and containers of them there, or a buffer."
                ) from None
        return found

    def put(self, changes: Mapping[str, Mapping[str, Any]], origin: str) -> None:
        """Set what `changes` returned; `origin` says where it comes from if it is of another method."""
        for path, values in changes.items():
            if path not in self.parts:
                raise ValueError(f"{origin} is of another experiment: it has attributes of {path!r}.")
            for name, value in values.items():
                _set(self.parts[path], name, _decoded(value))
                self._changed.add((path, name))
        self.noted = {path: dict(values) for path, values in changes.items()}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The server trains: what it sets that was None or missing is of this training."""
        before = self._attributes()
        yield
        now = self._attributes()
        self._passing |= {key for key in now if now[key] is not None and before.get(key) is None}

    def _attributes(self) -> dict[Key, Any]:
        """A user's own attributes; also buffers that are not in the state, and hyperparameters."""
        found: dict[Key, Any] = {}
        for path, part in self.parts.items():
            for name, value in vars(part).items():
                if name not in OWN and name not in OF_LIGHTNING:
                    found[path, name] = value
            for name in part._non_persistent_buffers_set:
                found[path, name] = part._buffers.get(name)
            for name, value in (vars(part).get("_hparams") or {}).items():
                found[path, f"{HPARAMS}{name}"] = value
        return found

    def _digests_of(self, attributes: Mapping[Key, Any]) -> dict[Key, bytes]:
        state = self._state_ids()
        return {key: _digest(value, state) for key, value in attributes.items()}

    def _state_ids(self) -> set[int]:
        """Of parts, parameters and buffers: they are saved as the method's state."""
        found = {id(part) for part in self.all_parts.values()}
        for part in self.all_parts.values():
            found |= {id(tensor) for tensor in part._parameters.values()}
            found |= {id(part._buffers[name]) for name in part._buffers.keys() - part._non_persistent_buffers_set}
        return found - {id(None)}


def _set(part: nn.Module, name: str, value: Any) -> None:
    if name.startswith(HPARAMS):
        part.hparams[name.removeprefix(HPARAMS)] = value  # type: ignore[operator,index]
    elif name in part._non_persistent_buffers_set:
        part._buffers[name] = value
    else:
        vars(part)[name] = value


def _library(value: object) -> str:
    return type(value).__module__.partition(".")[0]


def _digest(value: Any, state: set[int]) -> bytes:
    """The same as long as a value is, down to what containers and objects of a user's own hold."""
    digest = hashlib.blake2b(digest_size=16)
    try:
        _Contents(SimpleNamespace(write=digest.update), state).dump(value)
    except Exception:  # what cannot be pickled is the same as long as it is the same object
        return str(id(value)).encode()
    return digest.digest()


class _Contents(pickle.Pickler):
    """Writes what a value holds, to be compared: code, parameters and objects of libraries by their identity."""

    def __init__(self, file: Any, state: set[int]) -> None:
        super().__init__(file, protocol=4)
        self.state = state

    def persistent_id(self, value: Any) -> Any:
        if type(value) in PLAIN:
            return None
        if id(value) in self.state or isinstance(value, CODE | nn.Parameter):
            return id(value)
        if isinstance(value, Tensor):
            if value.numel() > LARGE_TENSOR or value.layout is not torch.strided:
                return id(value), value._version
            content = value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()
            return str(value.dtype), tuple(value.shape), content
        if isinstance(value, nn.Module | Optimizer):
            return None
        return id(value) if _library(value) in (*LIBRARIES, "fedlit") else None


def _encoded(value: Any, state: set[int]) -> Any:
    """As a checkpoint can hold it; TypeError names what it cannot."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, Tensor):
        if id(value) in state or isinstance(value, nn.Parameter):
            raise TypeError("a parameter or buffer of the method")
        return value.detach().clone()
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype.hasobject or value.dtype.kind not in "biufc":
            raise TypeError(f"an array of {value.dtype}")
        return MARK, "ndarray" if isinstance(value, np.ndarray) else "generic", torch.tensor(value), None
    if kind not in MAPPINGS and kind not in SEQUENCES:
        article = "an" if kind.__name__[:1].lower() in "aeiou" else "a"
        raise TypeError(f"{article} {kind.__name__}")
    entries = value.items() if kind in MAPPINGS else value
    inner = [_encoded(entry, state) for entry in entries]
    maxlen = value.maxlen if kind is deque else None
    return inner if kind is list else (MARK, kind.__name__, inner, maxlen)


def _decoded(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()  # a checkpoint is a mapped file
    if isinstance(value, list):
        return [_decoded(entry) for entry in value]
    if not isinstance(value, tuple) or value[:1] != (MARK,):
        return value
    _, kind, inner, maxlen = value
    if kind in ("ndarray", "generic"):
        array = inner.cpu().numpy()
        return array.copy() if kind == "ndarray" else array[()]
    entries = [_decoded(entry) for entry in inner]
    if kind == "deque":
        return deque(entries, maxlen)
    if kind == "Counter":
        return Counter(dict(entries))
    makers = {maker.__name__: maker for maker in (dict, OrderedDict, tuple, set, frozenset)}
    return makers[kind](entries)
