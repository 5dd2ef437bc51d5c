"""From what a data set gives to inputs and targets: which part of an item is which, and tensors of it."""

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedlit.data.trees import Tree

TARGETS = ("target", "label", "labels", "y")  # what a target is called if `data.target` does not say


MOST_NAMES = 12  # that a message lists


def listed(names: Sequence[object]) -> str:
    """Names for a message; of very many only the first.

    Example:
        >>> listed(["a", "b"]), listed([]), listed([f"c{i}" for i in range(400)])[-13:]
        ('a, b', 'none', 'c11 ... (400)')
    """
    message = ", ".join(str(name) for name in names[:MOST_NAMES])
    if len(names) > MOST_NAMES:
        message += f" ... ({len(names)})"
    return message or "none"


@dataclass(frozen=True)
class Roles:
    """Which part of an item is what.

    Of a pair, the second is the target; of more, the last. Of a dict, `target` names it; the others are inputs: one as
    it is, several as a dict.

    Attributes:
        target: Key or column of the target; by default the one of `TARGETS` that is there.
        features: Keys or columns that are inputs; by default all others.
        client: Key or column that names the client: no input.
    """

    target: str | None = None
    features: Sequence[str] | None = None
    client: str | None = None

    def target_of(self, names: Sequence[str], whose: str) -> str:
        """Which of these names is the target's."""
        if self.target is not None and self.target in names:
            return self.target
        found = [name for name in names if name in TARGETS]
        if len(found) == 1 and self.target is None:
            return found[0]
        there = listed(names)
        if self.target is None:
            raise ValueError(f"`data.target` must say which of {whose} is the target: {there}.")
        raise ValueError(f"`data.target` must be one of {whose}: {there}; got {self.target}.")

    def features_of(self, names: Sequence[str], whose: str) -> list[str]:
        """Which of these names are inputs."""
        target = self.target_of(names, whose)
        if self.features is None:
            inputs = [name for name in names if name not in (target, self.client)]
        else:
            inputs = list(self.features)
        known = set(names) - {target}
        strange = [name for name in inputs if name not in known]
        if strange or not inputs:
            there = listed([name for name in names if name != target])
            raise ValueError(f"`data.features` must name inputs among {whose}, {there}, got {listed(strange)}.")
        return inputs

    def check_client(self, names: Sequence[str], whose: str) -> None:
        """Refuse a `client` that is none of these names."""
        if self.client is not None and self.client not in names:
            raise ValueError(f"`data.client` must be one of {whose}: {listed(names)}; got {self.client}.")

    def of_batch(self, batch: Any) -> tuple[Tree, Tree]:
        """Input and target of what `data.collate_fn` has made, which may call the target otherwise than items do."""
        roles = self
        if isinstance(batch, Mapping) and self.target not in batch:
            roles = replace(self, target=None)
        if isinstance(batch, Mapping) and not set(self.features or ()) <= set(batch):
            roles = replace(roles, features=None)
        return roles.pair(batch, "`data.collate_fn`")

    def pair(self, item: Any, whose: str) -> tuple[Tree, Tree]:
        """Input and target of an item, or of a batch."""
        got = type(item).__name__
        if isinstance(item, tuple | list):
            if len(item) == 2:
                return item[0], item[1]
            if len(item) > 2:
                return tuple(item[:-1]), item[-1]
            got += f" of {len(item)}"
        if isinstance(item, Mapping):
            names = list(item)
            inputs = self.features_of(names, f"the keys of {whose}")
            x = item[inputs[0]] if len(inputs) == 1 else {name: item[name] for name in inputs}
            return x, item[self.target_of(names, f"the keys of {whose}")]
        raise ValueError(f"{whose} must give pairs (x, y), or dicts with a `data.target`, got {got}.")


def as_input(value: Any, name: str) -> Tree:
    """An input as a tree of tensors; images, of PIL or uint8 arrays, with channels first."""
    if isinstance(value, Tensor):
        if value.dtype == torch.uint8 and value.ndim == 2:
            return value[None]
        return value
    if isinstance(value, Mapping):
        return {key: as_input(part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, tuple | list) and not _is_numbers(value):
        return _rebuilt(value, [as_input(part, f"{name}[{i}]") for i, part in enumerate(value)])
    if hasattr(value, "mode") and hasattr(value, "getbands"):
        if value.mode not in ("L", "RGB"):
            raise ValueError(f"{name} must be a grey (L) or RGB image, got mode {value.mode}.")
        return channels_first(np.array(value))
    if isinstance(value, np.ndarray):
        return channels_first(value)
    return _as_tensor(value, name)


def as_target(value: Any, name: str) -> Tree:
    """A target as a tree of tensors; a whole number is a class, and an image a class for each pixel ``[H, W]``."""
    if isinstance(value, Mapping):
        return {key: as_target(part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, tuple | list) and not _is_numbers(value):
        return _rebuilt(value, [as_target(part, f"{name}[{i}]") for i, part in enumerate(value)])
    if hasattr(value, "mode") and hasattr(value, "getbands"):
        return torch.from_numpy(np.array(value).astype(np.int64))
    if class_of(value) is not None:
        return torch.tensor(class_of(value))
    return _as_tensor(value, name)


def class_of(target: Any) -> int | None:
    """A target that is one whole number, such as a class; None of any other."""
    try:
        return operator.index(target)
    except TypeError:
        return None


def channels_first(pixels: np.ndarray) -> Tensor:
    """A uint8 image ``[H, W]`` or ``[H, W, C <= 4]`` as ``[C, H, W]``; any other array as it is."""
    if pixels.dtype == np.uint8 and pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] <= 4:
        return torch.from_numpy(np.ascontiguousarray(pixels.transpose(2, 0, 1)))
    return _as_tensor(pixels, "an array")


def _as_tensor(value: Any, name: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise ValueError(f"{name} must be plain values, got a tensor that requires grad; give its `detach()`.")
        return value
    if isinstance(value, np.ndarray):
        value = np.array(value)  # a copy: torch takes neither backward strides nor memory that must not be written
    try:
        return torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        message = f"{name} must be numbers, a tensor, an array or an image, got {type(value).__name__}"
        raise ValueError(f"{message}; convert it in the data set, or give `data.collate_fn`.") from None


def _is_numbers(value: Any) -> bool:
    """Whether a list holds nothing but numbers, perhaps in lists: a tensor then, and not a tree."""
    if isinstance(value, tuple | list):
        return len(value) > 0 and all(map(_is_numbers, value))
    return isinstance(value, bool | int | float | np.number)


def _rebuilt(like: Any, values: list[Any]) -> Any:
    if hasattr(like, "_fields"):
        return type(like)(*values)
    return tuple(values) if isinstance(like, tuple) else values
