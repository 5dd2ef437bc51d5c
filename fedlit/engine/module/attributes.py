"""The attributes of a method and its parts, and what these hold: after a visit they are as they were before it.

So no client finds what another has left: what is to travel or to stay is a parameter or a buffer. Values of those are
not looked after here, since the next state is loaded into them; but they are to lie where they lay.
"""

import random
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import Enum
from functools import partial
from operator import is_
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

LARGE = 10_000  # entries of a container below which nobody looks
LARGE_TENSOR = 1_000_000  # values of a tensor or array that nobody copies at every visit
ATOMS = frozenset({type(None), bool, int, float, complex, str, bytes, type, FunctionType, partial, MethodType})
CONTAINERS = frozenset({dict, OrderedDict, list, set, deque})
CODE = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, partial, Enum)
HOUSES = ("fedlit", "lightning", "lightning_fabric", "torch")  # whose objects look after themselves


def is_looked_into(value: Any) -> bool:
    """Whether an object's own attributes may change under a client's hands: not code, nor a federation's own things."""
    if isinstance(value, CODE):
        return False
    if isinstance(value, nn.Module | Optimizer):
        return True
    return hasattr(value, "__dict__") and type(value).__module__.partition(".")[0] not in HOUSES


class NotedTensor:
    """A tensor that is neither parameter nor buffer of the live module, and its values."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor
        self.before = tensor.detach().clone()

    def holds(self) -> bool:
        return self.tensor.dtype is self.before.dtype and torch.equal(self.tensor, self.before)

    def restore(self) -> None:
        if self.tensor.shape == self.before.shape and self.tensor.dtype is self.before.dtype:
            with torch.no_grad():
                self.tensor.copy_(self.before)
        else:
            self.tensor.data = self.before.clone()


class NotedArray:
    """A numpy array, and its values."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array
        self.before = array.copy()

    def holds(self) -> bool:
        return self.array.shape == self.before.shape and self.array.tobytes() == self.before.tobytes()

    def restore(self) -> None:
        if self.array.shape != self.before.shape:
            self.array.resize(self.before.shape, refcheck=False)
        self.array[...] = self.before


class NotedGenerator:
    """A generator of random numbers: it begins the next visit as it began this one."""

    def __init__(self, generator: torch.Generator | np.random.Generator | random.Random) -> None:
        self.generator = generator
        self.before = self._state()

    def _state(self) -> Any:
        if isinstance(self.generator, torch.Generator):
            return self.generator.get_state()
        if isinstance(self.generator, random.Random):
            return self.generator.getstate()
        return self.generator.bit_generator.state

    def holds(self) -> bool:
        """It is put back as quickly as it is looked at."""
        return False

    def restore(self) -> None:
        if isinstance(self.generator, torch.Generator):
            self.generator.set_state(self.before)
        elif isinstance(self.generator, random.Random):
            self.generator.setstate(self.before)
        else:
            self.generator.bit_generator.state = self.before


Noted = NotedTensor | NotedArray | NotedGenerator


class Attributes:
    """The attributes of some modules, as they are now, and all that can be reached from them.

    Args:
        parts: Of the live module.
    """

    def __init__(self, parts: Iterable[nn.Module]) -> None:
        self.objects: list[tuple[Any, type, dict[str, Any]]] = []
        self.empty: list[Any] = []
        self.filled: list[tuple[Any, tuple[list, ...]]] = []
        self.values: list[Noted] = []
        self.places: list[tuple[Tensor, Tensor]] = []
        self.seen: dict[int, Any] = {}  # held, or another object might get its id
        parts = list(parts)
        for part in parts:
            self.seen[id(part)] = part
        values: list[Any] = []
        for part in parts:
            values += self._note_part(part)
        self._note_all(values)

    def hold(self) -> bool:
        """Whether everything is still as it was noted; the quicker question, and mostly it is."""
        for owner, kind, attributes in self.objects:
            if type(owner) is not kind or not _are_same(vars(owner), attributes):
                return False
        if any(self.empty) or not all(_holds(container, content) for container, content in self.filled):
            return False
        return all(note.holds() for note in self.values) and all(_lies_at(*place) for place in self.places)

    def restore(self) -> None:
        """Give everything its attributes and contents back, and no others."""
        if self.hold():
            return
        for owner, kind, attributes in self.objects:
            if type(owner) is not kind:
                owner.__class__ = kind
            now = vars(owner)
            now.clear()
            now.update(attributes)
        for container in self.empty:
            container.clear()
        for container, content in self.filled:
            _refill(container, content)
        for note in self.values:
            note.restore()
        for tensor, place in self.places:
            if not _lies_at(tensor, place):
                tensor.data = place

    def _note_part(self, part: nn.Module) -> Iterable[Any]:
        """A part of the live module: parameters and buffers keep their places, and their values are others' affair."""
        attributes = vars(part).copy()
        self.objects.append((part, type(part), attributes))
        passing = part._non_persistent_buffers_set
        for entries in (part._parameters, part._buffers):
            if not entries:
                continue
            self._note_container(entries)
            for name, tensor in entries.items():
                if tensor is not None and name not in passing:
                    self.seen[id(tensor)] = tensor
                    self.places.append((tensor, tensor.detach()))
        if passing:
            return [*attributes.values(), *(part._buffers.get(name) for name in passing)]
        return attributes.values()

    def _note_all(self, values: Iterable[Any]) -> None:
        """What can be reached from here; not by recursion, since a chain of objects may be long."""
        waiting = self._telling(values)
        for value in waiting:
            if id(value) not in self.seen:
                self.seen[id(value)] = value
                waiting += self._telling(self._note(value))

    def _telling(self, values: Iterable[Any]) -> list[Any]:
        """Of some values those that may hold something; of most hooks there are none, so empty ones go by quickly."""
        found = [value for value in values if type(value) not in ATOMS]
        self.empty += [value for value in found if type(value) in CONTAINERS and not value]
        return [value for value in found if type(value) not in CONTAINERS or value]

    def _note(self, value: Any) -> Iterable[Any]:
        """One thing; what is to be noted after it."""
        if isinstance(value, Tensor):
            if value.layout is torch.strided and value.device.type != "meta" and value.numel() <= LARGE_TENSOR:
                self.values.append(NotedTensor(value))
            return ()
        if isinstance(value, np.ndarray):
            if value.size <= LARGE_TENSOR:
                self.values.append(NotedArray(value))
            return ()
        if isinstance(value, tuple | frozenset):
            return value if len(value) <= LARGE else ()
        found: list[Any] = []
        if isinstance(value, dict | list | set | deque):
            found += self._note_container(value)
        if isinstance(value, torch.Generator | np.random.Generator | random.Random):
            self.values.append(NotedGenerator(value))
        elif is_looked_into(value):
            attributes = vars(value).copy()
            self.objects.append((value, type(value), attributes))
            found += attributes.values()
        return found

    def _note_container(self, container: Any) -> list[Any]:
        self.seen[id(container)] = container
        content = _content(container)
        self.filled.append((container, content))
        if len(container) > LARGE:
            return []
        return [inner for values in content for inner in values]


@contextmanager
def attributes_kept(parts: Iterable[nn.Module]) -> Iterator[None]:
    """Whatever happens within, these parts have their attributes again afterwards."""
    before = Attributes(parts)
    try:
        yield
    finally:
        before.restore()


def _are_same(now: dict[str, Any], before: dict[str, Any]) -> bool:
    return len(now) == len(before) and all(map(is_, now.values(), before.values())) and list(now) == list(before)


def _content(container: Any) -> tuple[list, ...]:
    """What a container holds; a mapping's keys and values."""
    if isinstance(container, dict):
        return list(dict.keys(container)), list(dict.values(container))
    return (list(container),)


def _holds(container: Any, content: tuple[list, ...]) -> bool:
    """Whether a container holds the very things that it held."""
    if len(container) != len(content[0]):
        return False
    if isinstance(container, dict) and not all(map(is_, dict.values(container), content[1])):
        return False
    return all(map(is_, container, content[0]))


def _refill(container: Any, content: tuple[list, ...]) -> None:
    """By the methods of Python's own: a class of somebody's may count what is put in."""
    kind: Any = next(kind for kind in (OrderedDict, dict, list, set, deque) if isinstance(container, kind))
    kind.clear(container)
    if isinstance(container, dict):
        kind.update(container, zip(*content, strict=True))
    elif isinstance(container, set):
        kind.update(container, *content)
    else:
        kind.extend(container, *content)


def _lies_at(tensor: Tensor, place: Tensor) -> bool:
    if tensor.data_ptr() != place.data_ptr() or tensor.dtype is not place.dtype:
        return False
    return tensor.shape == place.shape and tensor.stride() == place.stride()
