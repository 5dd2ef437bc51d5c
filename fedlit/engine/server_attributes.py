"""Attributes of a method that the server's side has changed: checkpoints hold plain values, others are refused.

The server's side is `aggregate`, `select_clients`, `download`, callbacks and stages in which the server trains. What
clients change is undone after their local training.
"""

import io
import pickle
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlit.engine.plan import UsageError
from fedlit.methods.base import OF_LOCAL_TRAINING
from fedlit.records.plain_values import PLAIN

Key = tuple[str, str]  # path of a part, name of its attribute
Saved = dict[str, dict[str, Any]]  # by path and name, as a checkpoint holds it
# Lightning's and the engine's own: saved elsewhere, or not at all.
OWN = {*vars(LightningModule()), "_hparams", "_hparams_initial", "_hparams_name", *OF_LOCAL_TRAINING}
OWN |= {"num_clients", "fast", "_rule", "_evaluated", "_evaluated_names"}
LIBRARIES = ("torch", "torchmetrics", "lightning", "lightning_fabric")
LARGE_TENSOR = 1_000_000  # values; a larger tensor is compared by its identity and version
OLD_MARK = "fedlit:"  # version 0.2 wrote arrays and other containers as tuples that begin so


class UnserializableAttribute(UsageError):
    """An attribute was changed that no checkpoint can hold."""


class ServerAttributes:
    """Attributes of a method and its parts that have changed since the first fit began.

    An attribute that is None or missing before the server trains belongs to that training, such as its teachers: it is
    made anew by the next, and not saved.

    Args:
        parts: Of the live module, by path.

    Attributes:
        saved: The changes as of the last complete round.
    """

    def __init__(self, parts: Mapping[str, nn.Module]) -> None:
        self.parts = {path: part for path, part in parts.items() if library_of(part) not in LIBRARIES}
        self.saved: Saved = {}
        self._in_state = parts
        self._initial: dict[Key, Any] = {}  # held, or other objects might get their ids
        self._contents: dict[Key, bytes] = {}
        self._of_training: set[Key] = set()

    def set_baseline(self) -> None:
        """A fit begins: what callbacks have set by now, they will set again in one that resumes it."""
        self._initial = self._attributes()
        self._contents = self._contents_of(self._initial)

    def note(self) -> None:
        """A round is complete; refuse what it has changed and no checkpoint can hold."""
        self.saved = self.changes()

    def changes(self) -> Saved:
        """What has changed; what was saved once is saved again, since a resumed fit begins with it."""
        attributes = self._attributes()
        contents = self._contents_of(attributes)
        changed = {key for key in contents.keys() | self._contents if contents.get(key) != self._contents.get(key)}
        changed |= {(path, name) for path, values in self.saved.items() for name in values}
        in_state = self._ids_in_state()
        found: Saved = {}
        for path, name in sorted(changed - self._of_training):
            try:
                found.setdefault(path, {})[name] = copied(attributes.get((path, name)), in_state)
            except TypeError as error:
                raise UnserializableAttribute(
                    f"`model`: `self.{name}` of {type(self.parts[path]).__name__} was changed, and stays so after "
                    f"clients' training; it holds {error}, which no checkpoint can hold: a resumed run would not have "
                    "it. Make it anew in `on_client_start`, or keep tensors, numbers, strings and containers of them."
                ) from None
        return found

    def put(self, changes: Saved) -> None:
        """Set what `changes` returned."""
        for path, values in changes.items():
            part = self.parts[path]
            for name, value in values.items():
                if _is_old(value):
                    raise ValueError(f"`--ckpt_path`: `self.{name}` is an array or container that only 0.2 can read.")
                setattr(part, name, copied(value))
        self.saved = changes

    @contextmanager
    def server_training(self) -> Iterator[None]:
        """The server trains."""
        before = self._attributes()
        yield
        after = self._attributes()
        self._of_training |= {key for key in after if after[key] is not None and before.get(key) is None}

    def _attributes(self) -> dict[Key, Any]:
        """A user's own attributes; also buffers that are not in the state."""
        found: dict[Key, Any] = {}
        for path, part in self.parts.items():
            found |= {(path, name): value for name, value in vars(part).items() if name not in OWN}
            found |= {(path, name): part._buffers.get(name) for name in part._non_persistent_buffers_set}
        return found

    def _contents_of(self, attributes: Mapping[Key, Any]) -> dict[Key, bytes]:
        in_state = self._ids_in_state()
        return {key: content_of(attributes[key], in_state) for key in attributes.keys() - self._of_training}

    def _ids_in_state(self) -> set[int]:
        """Of parts, parameters and buffers: they are saved as the method's state."""
        tensors = self._in_state[""].state_dict(keep_vars=True)
        return {*map(id, self._in_state.values()), *map(id, tensors.values())}


def copied(value: Any, others: Collection[int] = ()) -> Any:
    """A copy of a plain value; TypeError names what no checkpoint can hold.

    Args:
        value: To be saved.
        others: Ids of tensors and parts that belong to the method and are saved with it.

    Example:
        >>> copied({"steps": [1, 2]})
        {'steps': [1, 2]}
    """
    kind = type(value)
    if id(value) in others:
        raise TypeError("a parameter or buffer of the method")
    if kind is Tensor:
        return value.detach().clone()
    if kind is dict:
        return {copied(key, others): copied(entry, others) for key, entry in value.items()}
    if kind in (list, tuple):
        return kind(copied(entry, others) for entry in value)
    if kind in PLAIN:
        return value
    raise TypeError(f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {kind.__name__}")


def _is_old(value: Any) -> bool:
    """Whether version 0.2 wrote an array or container here, or within a list."""
    if isinstance(value, list):
        return any(map(_is_old, value))
    return isinstance(value, tuple) and value[:1] == (OLD_MARK,)


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
