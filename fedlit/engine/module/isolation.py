"""Isolation of clients: whatever a client's code does, the next one finds the process and the module as they were.

Restored after every client: gradient mode, default dtype, attributes and parts of the module, and where its tensors
lie. Random states are `fedlit.rng.isolated`'s business. What is not handled: docs/clients.md.
"""

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from fedlit.engine.usage import UsageError
from fedlit.records.round_record import Failure, failure

STRUCTURE = ("_parameters", "_buffers", "_modules")
Container = dict[str, Any] | list[Any] | set[Any]


class ModuleSnapshot:
    """The attributes and the structure of a module and its parts.

    Values of parameters and buffers are not part of it: the next state is loaded into them. Of an attribute that is a
    dict, a list or a set, its entries are restored; what other objects hold is not.

    Args:
        module: As it is now.
    """

    def __init__(self, module: nn.Module) -> None:
        self.attributes: list[tuple[nn.Module, dict[str, Any]]] = []
        self.structure: list[tuple[Container, Container]] = []
        self.filled: list[tuple[Container, Container]] = []
        self.empty: list[Container] = []
        for part in module.modules():
            attributes = dict(vars(part))
            self.attributes.append((part, attributes))
            for name, value in attributes.items():
                if type(value) not in (dict, OrderedDict, list, set):
                    continue
                if name in STRUCTURE:
                    self.structure.append((value, value.copy()))
                elif value:
                    self.filled.append((value, value.copy()))
                else:
                    self.empty.append(value)  # most of them hooks
        tensors = module.state_dict(keep_vars=True).values()
        self.places = [(tensor, tensor.detach(), tensor.requires_grad) for tensor in tensors]
        self.passing = [(buffer, buffer.clone()) for part in module.modules() for buffer in _non_persistent(part)]

    def holds(self) -> bool:
        """Whether everything is as it was; the quick question, and mostly it is."""
        if any(self.empty) or not all(_lies_at(*place) for place in self.places):
            return False
        for part, attributes in self.attributes:
            if not _are_same(vars(part), attributes):
                return False
        for container, content in (*self.structure, *self.filled):
            if not _are_same(container, content):
                return False
        return all(_is_equal(buffer, before) for buffer, before in self.passing)

    def restore(self) -> None:
        """Give every part its attributes, parts and tensors back."""
        if self.holds():
            return
        for part, attributes in self.attributes:
            _refill(vars(part), attributes)
        self.restore_structure()
        for container in self.empty:
            container.clear()
        for container, content in self.filled:
            _refill(container, content)
        for tensor, _, requires_grad in self.places:
            tensor.requires_grad_(requires_grad)
        for buffer, before in self.passing:
            buffer.data = before.clone()

    def restore_structure(self) -> None:
        """Give every part its parts, parameters and buffers back, each where it lay; whether they train stays."""
        for container, content in self.structure:
            _refill(container, content)
        for tensor, place, _ in self.places:
            if not _lies_at(tensor, place, tensor.requires_grad):
                tensor.data = place


def failed(error: BaseException) -> Failure:
    """Why a client is left out."""
    found = failure(error)
    found.is_usage = isinstance(error, UsageError)
    return found


def _non_persistent(part: nn.Module) -> list[Tensor]:
    found = [part._buffers.get(name) for name in part._non_persistent_buffers_set]
    return [buffer for buffer in found if buffer is not None]


def _are_same(now: Container, before: Container) -> bool:
    """Whether a container holds what it held; values that are no longer the same object are compared."""
    try:
        return bool(now == before)
    except Exception:  # tensors and arrays have no single truth: they are others
        return False


def _refill(container: Container, content: Container) -> None:
    container.clear()
    if isinstance(container, list):
        container.extend(content)
    else:
        container.update(content)  # type: ignore[arg-type]  # of its own kind


def _is_equal(now: Tensor, before: Tensor) -> bool:
    return now.dtype == before.dtype and torch.equal(now, before)


def _lies_at(tensor: Tensor, place: Tensor, requires_grad: bool) -> bool:
    if tensor.data_ptr() != place.data_ptr() or tensor.dtype is not place.dtype:
        return False
    is_same_view = tensor.shape == place.shape and tensor.stride() == place.stride()
    return is_same_view and tensor.requires_grad == requires_grad
