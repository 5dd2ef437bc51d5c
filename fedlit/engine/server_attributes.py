"""What the server's side changes in a method's attributes: plain values go on from a checkpoint, others are refused.

The server's side is `aggregate`, `select_clients`, `download`, callbacks and stages in which the server trains. What
clients change ends with their visits. An attribute that is None or not there before the server trains is of that
training, such as its teachers, and is made anew by the next.
"""

import hashlib
from collections import Counter, OrderedDict, deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
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
# The engine's own, Lightning's, torch's: others look after them.
OWN = {"client", "stage", "received", "num_clients", "fast", "_rule", "_log_sink", "_evaluated", "_evaluated_names"}
OF_LIGHTNING = {*vars(LightningModule()), "_hparams", "_hparams_initial", "_hparams_name"}
HOUSES = ("torch", "torchmetrics", "lightning", "lightning_fabric")


LARGE_TENSOR = 1_000_000  # values of a tensor that is compared by its identity and version
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial, Enum)


def is_looked_into(value: Any) -> bool:
    """Whether an object's own attributes may change: not code, nor a federation's own things."""
    if isinstance(value, CODE):
        return False
    if isinstance(value, nn.Module | Optimizer):
        return True
    return hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in (*HOUSES, "fedlit")


class UnserializableAttribute(UsageError):
    """An attribute was changed that no checkpoint can hold."""


class ServerAttributes:
    """Attributes of a method and its parts that are no longer as the method was made with.

    Args:
        parts: Of the live module, by path.

    Attributes:
        noted: What a checkpoint holds of them, as of the last whole round: by path and name.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        self.parts = {path: part for path, part in parts.items() if type(part).__module__.split(".")[0] not in HOUSES}
        self.state = parts
        self.noted: dict[str, dict[str, Any]] = {}
        self._changed: set[Key] = set()  # once changed, always told: a resumed method may have been made with it
        self._passing: set[Key] = set()  # of the server's training
        self._held = [self._attributes(part) for part in self.parts.values()]  # or others might get their ids
        self._made = self._digests()
        self._begun = self._made

    def begin(self) -> None:
        """A fit begins: what callbacks have set by now, they will set again in one that goes on."""
        self._held += [self._attributes(part) for part in self.parts.values()]
        self._begun = self._digests()

    def note(self) -> None:
        """A round is whole; refuse what it has changed and cannot be kept."""
        self.noted = self.changes()

    def changes(self) -> dict[str, dict[str, Any]]:
        """What has changed, as a checkpoint holds it."""
        now = self._digests()
        differing = {key for key in self._made.keys() | now.keys() if now.get(key) != self._made.get(key)}
        found: dict[str, dict[str, Any]] = {}
        for key in sorted((self._changed | differing) - self._passing):
            path, name = key
            value = self._attributes(self.parts[path]).get(name)
            try:
                found.setdefault(path, {})[name] = self._encoded(value)
            except TypeError as error:
                if now.get(key) != self._begun.get(key):
                    raise UnserializableAttribute(_refusal(self.parts[path], name, str(error))) from None
            else:
                self._changed.add(key)
        return {path: values for path, values in found.items() if values}

    def put(self, changes: Mapping[str, Mapping[str, Any]], origin: str) -> None:
        """Give a method the attributes that it had.

        Args:
            changes: Of `changes`.
            origin: Where they come from, for whoever gives them to another method.
        """
        for path, values in changes.items():
            if path not in self.parts:
                raise ValueError(f"{origin} is of another experiment: it has attributes of {path!r}.")
            for name, value in values.items():
                self._set(self.parts[path], name, _decoded(value))
                self._changed.add((path, name))
        self.noted = {path: dict(values) for path, values in changes.items()}

    @contextmanager
    def serving(self) -> Iterator[None]:
        """The server trains: what it sets that was not there is of this training."""
        before = {(path, name) for path, part in self.parts.items() for name, value in self._attributes(part).items()
                  if value is not None}  # fmt: skip
        digests = self._digests()
        yield
        now = self._digests()
        self._passing |= {key for key in now if key not in before and now[key] != digests.get(key)}

    def _attributes(self, part: nn.Module) -> dict[str, Any]:
        """A user's own of a part, by name; also buffers that no state holds, and hyperparameters."""
        found = {name: value for name, value in vars(part).items() if name not in OWN and name not in OF_LIGHTNING}
        found |= {name: part._buffers.get(name) for name in part._non_persistent_buffers_set}
        hparams = vars(part).get("_hparams")
        if isinstance(hparams, dict):
            found |= {f"{HPARAMS}{name}": value for name, value in hparams.items()}
        return found

    def _set(self, part: nn.Module, name: str, value: Any) -> None:
        if name.startswith(HPARAMS):
            part.hparams[name.removeprefix(HPARAMS)] = value  # type: ignore[operator,index]
        elif name in part._non_persistent_buffers_set:
            part._buffers[name] = value
        else:
            vars(part)[name] = value

    def _digests(self) -> dict[Key, bytes]:
        """Of each attribute, what is the same as long as it is."""
        known = self._state_ids()
        found: dict[Key, bytes] = {}
        for path, part in self.parts.items():
            for name, value in self._attributes(part).items():
                digest = hashlib.blake2b(digest_size=16)
                if type(value) not in PLAIN and not _is_container(value) and not is_looked_into(value):
                    digest.update(str(id(value)).encode())
                _feed(digest, value, known)
                found[path, name] = digest.digest()
        return found

    def _state_ids(self) -> set[int]:
        """Parameters, buffers and parts: what these hold is not an attribute."""
        found = {id(part) for part in self.state.values()}
        for part in self.state.values():
            passing = part._non_persistent_buffers_set
            found |= {id(tensor) for tensor in part._parameters.values()}
            found |= {id(tensor) for name, tensor in part._buffers.items() if name not in passing}
        return found - {id(None)}

    def _encoded(self, value: Any) -> Any:
        return _encoded(value, self._state_ids(), [])


def _refusal(part: nn.Module, name: str, holds: str) -> str:
    return (
        f"`model`: `self.{name}` of {type(part).__name__} was changed between visits and holds {holds}, which no "
        "checkpoint can hold: a run that goes on would not have it. Keep tensors, numbers, strings and containers of "
        "them there, or a buffer."
    )


def _is_container(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | set | frozenset | deque | Tensor | np.ndarray | np.generic)


def _feed(digest: Any, value: Any, known: set[int], above: tuple[int, ...] = ()) -> None:
    """Let a digest know a value, down to what containers and objects hold."""
    digest.update(f"{type(value).__name__}(".encode())
    if isinstance(value, PLAIN):
        digest.update(repr(value).encode())
    elif isinstance(value, Tensor):
        _feed_tensor(digest, value, known)
    elif isinstance(value, np.ndarray | np.generic):
        digest.update(f"{value.dtype}{value.shape}".encode() + value.tobytes())
    elif id(value) in above or id(value) in known:
        pass  # a circle, or a part of the method
    elif isinstance(value, set | frozenset):
        digest.update(repr(sorted(map(repr, value))).encode())
    else:
        for inner in _inside(value):
            _feed(digest, inner, known, (*above, id(value)))
    digest.update(b")")


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [inner for pair in value.items() for inner in pair]
    if isinstance(value, list | tuple | deque):
        return [*value]
    if is_looked_into(value):
        return [id(value), *(inner for pair in vars(value).items() for inner in pair)]
    return []


def _feed_tensor(digest: Any, tensor: Tensor, known: set[int]) -> None:
    digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    if id(tensor) in known or isinstance(tensor, nn.Parameter):
        return
    if tensor.numel() > LARGE_TENSOR or tensor.layout is not torch.strided:
        digest.update(f"{id(tensor)} {tensor._version}".encode())
    else:
        digest.update(tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())


def _encoded(value: Any, known: set[int], above: list[int]) -> Any:
    """As a checkpoint can hold it; TypeError names what it cannot."""
    kind = type(value)
    if kind in PLAIN:
        return value
    if isinstance(value, Tensor):
        if id(value) in known or isinstance(value, nn.Parameter):
            raise TypeError("a parameter or buffer of the method")
        return value.detach().clone()
    if isinstance(value, np.ndarray | np.generic):
        return _encoded_array(value)
    if kind not in MAPPINGS and kind not in SEQUENCES:
        raise TypeError(f"{_article(kind.__name__)} {kind.__name__}")
    if id(value) in above:
        raise TypeError(f"{_article(kind.__name__)} {kind.__name__} that holds itself")
    entries = [*value.items()] if kind in MAPPINGS else [*value]
    inner = [_encoded(entry, known, [*above, id(value)]) for entry in entries]
    maxlen = value.maxlen if kind is deque else None
    return inner if kind is list else (MARK, kind.__name__, inner, maxlen)


def _encoded_array(value: np.ndarray | np.generic) -> tuple:
    try:
        return MARK, type(value).__name__ if isinstance(value, np.ndarray) else "generic", torch.tensor(value), None
    except TypeError:
        raise TypeError(f"an array of {value.dtype}") from None


def _decoded(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.clone()  # a checkpoint is a mapped file
    if isinstance(value, list):
        return [_decoded(entry) for entry in value]
    if not isinstance(value, tuple) or value[:1] != (MARK,):
        return value
    _, kind, inner, maxlen = value
    if kind == "ndarray":
        return inner.cpu().numpy().copy()
    if kind == "generic":
        return inner.cpu().numpy()[()]
    entries = [_decoded(entry) for entry in inner]
    if kind == "deque":
        return deque(entries, maxlen)
    if kind == "Counter":
        return Counter(dict(entries))
    makers = {maker.__name__: maker for maker in (dict, OrderedDict, tuple, set, frozenset)}
    return makers[kind](entries)


def _article(word: str) -> str:
    return "an" if word[:1].lower() in "aeiou" else "a"
