"""Attributes of a method that the server's side has changed: checkpoints hold plain values, others are refused.

The server's side is `aggregate`, `select_clients`, `download`, callbacks and stages in which the server trains. What
clients change is undone after their local training.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lightning.pytorch import LightningModule
from torch import nn

from fedlit.engine.plan import UsageError
from fedlit.methods.base import OF_LOCAL_TRAINING
from fedlit.records.plain_values import LIBRARIES, content_of, decoded, encoded, library_of

Key = tuple[str, str]  # path of a part, name of its attribute
Saved = dict[str, dict[str, Any]]  # by path and name, as a checkpoint holds it
# Lightning's and the engine's own: saved elsewhere, or not at all.
OWN = {*vars(LightningModule()), "_hparams", "_hparams_initial", "_hparams_name", *OF_LOCAL_TRAINING}
OWN |= {"num_clients", "fast", "_rule", "_evaluated", "_evaluated_names"}


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
                found.setdefault(path, {})[name] = encoded(attributes.get((path, name)), in_state)
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
                setattr(part, name, decoded(value))
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
