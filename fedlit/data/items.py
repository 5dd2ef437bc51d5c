"""Samples as trees of tensors: one tensor, or a dict, tuple or list of trees; and which part of an item is what.

Invariant: whatever is done to a tree is done to each of its tensors, and its structure stays.
"""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tree = Any  # a tensor, or a dict, tuple or list of trees
TARGETS = ("target", "label", "labels", "y")  # what a target is called if `data.target` does not say
MOST_NAMES = 12  # that a message lists


def mapped(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree with the function's result in place of each leaf; of several trees of one structure, of their leaves.

    Example:
        >>> mapped(len, {"ids": torch.zeros(4, 2), "more": (torch.zeros(4),)})
        {'ids': 4, 'more': (4,)}
    """
    if isinstance(tree, Mapping):
        return {key: mapped(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        return _rebuilt(tree, [mapped(function, *parts) for parts in zip(tree, *others, strict=True)])
    return function(tree, *others)


def _rebuilt(like: Any, values: list[Any]) -> Any:
    if hasattr(like, "_fields"):  # a named tuple
        return type(like)(*values)
    return tuple(values) if isinstance(like, tuple) else values


def leaves(tree: Tree) -> Iterator[Any]:
    """What is neither dict, tuple nor list, from left to right."""
    if isinstance(tree, Mapping):
        tree = tuple(tree.values())
    if isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def length(tree: Tree) -> int:
    """Samples of a tree ``[N, ...]``."""
    return len(tree if isinstance(tree, Tensor) else next(leaves(tree)))


def chosen(tree: Tree, index: Tensor) -> Tree:
    """Some samples of a tree ``[N, ...]``."""
    if isinstance(tree, Tensor):
        return tree.index_select(0, index)  # several times faster than tree[index]
    return mapped(lambda leaf: leaf.index_select(0, index), tree)


def head(tree: Tree, number: int | None) -> Tree:
    """The first samples of a tree ``[N, ...]``; all for None."""
    return mapped(lambda leaf: leaf[:number], tree)


def cut(tree: Tree, size: int) -> Sequence[Tree]:
    """Consecutive parts of a tree ``[N, ...]``, of so many samples each; views."""
    if isinstance(tree, Tensor):
        return tree.split(size)
    starts = range(0, length(tree), size)
    return [mapped(lambda leaf, i=start: leaf[i : i + size], tree) for start in starts]


def stacked(trees: Sequence[Tree]) -> Tree:
    """Samples of one kind as a tree ``[N, ...]``."""
    return mapped(lambda *parts: torch.stack(parts), *trees)


def joined(trees: Sequence[Tree]) -> Tree:
    """Trees ``[N, ...]`` end to end."""
    return mapped(lambda *parts: torch.cat(parts), *trees)


def moved(tree: Tree, device: torch.device) -> Tree:
    """On a device; what has no device stays as it is.

    CUDA is not waited for: it takes a copy of what is in ordinary memory before a call returns.
    """
    if isinstance(tree, Tensor):
        return tree.to(device, non_blocking=device.type == "cuda")
    return mapped(lambda leaf: leaf.to(device) if hasattr(leaf, "to") else leaf, tree)


def num_bytes(tree: Tree) -> int:
    """Size of the tensors and arrays of a tree."""
    return sum(getattr(leaf, "nbytes", 0) for leaf in leaves(tree))


def describe(tree: Tree, of_many: bool = False) -> str:
    """Dtypes and shapes, equal for samples of one kind; `of_many`, without the number of samples.

    Example:
        >>> describe({"ids": torch.zeros(4, dtype=torch.int64), "more": (torch.zeros(2, 3),)})
        '{ids: int64 [4], more: (float32 [2, 3])}'
        >>> describe(torch.zeros(2, 3), of_many=True)
        'float32 [N, 3]'
    """
    if isinstance(tree, Mapping):
        return "{" + ", ".join(f"{key}: {describe(value, of_many)}" for key, value in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + ", ".join(describe(value, of_many) for value in tree) + ")"
    if not isinstance(tree, Tensor):
        return type(tree).__name__
    sizes = [str(size) for size in tree.shape]
    if of_many and sizes:
        sizes[0] = "N"
    return f"{str(tree.dtype).removeprefix('torch.')} [{', '.join(sizes)}]"


def equal(tree: Tree, other: Tree) -> bool:
    """Whether two trees hold the same bits; nan is equal to itself, and other leaves are compared as Python does."""
    if describe(tree) != describe(other):
        return False
    return all(_equal(a, b) for a, b in zip(leaves(tree), leaves(other), strict=True))


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return bool(((a == b) | ((a != a) & (b != b))).all())
    if isinstance(a, np.ndarray | np.generic):
        return np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return bool(a == b)


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

    @property
    def given(self) -> list[str]:
        """The options that name keys or columns."""
        return [name for name in ("target", "features", "client") if getattr(self, name) is not None]

    def target_of(self, names: Sequence[str], whose: str) -> str:
        """Which of these names is the target's."""
        found = [name for name in names if name in ((self.target,) if self.target is not None else TARGETS)]
        if len(found) == 1:
            return found[0]
        if self.target is None:
            raise ValueError(f"`data.target` must say which of {whose} is the target: {listed(names)}.")
        raise ValueError(f"`data.target` must be one of {whose}: {listed(names)}; got {self.target}.")

    def features_of(self, names: Sequence[str], whose: str) -> list[str]:
        """Which of these names are inputs."""
        target = self.target_of(names, whose)
        if self.features is None:
            inputs = [name for name in names if name not in (target, self.client)]
        else:
            inputs = list(self.features)
        others = [name for name in names if name != target]
        unknown = [name for name in inputs if name not in others]
        if unknown or not inputs:
            raise ValueError(
                f"`data.features` must name inputs among {whose}, {listed(others)}, got {listed(unknown)}."
            )
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
        if isinstance(item, tuple | list) and len(item) >= 2:
            return item[0] if len(item) == 2 else tuple(item[:-1]), item[-1]
        if isinstance(item, Mapping):
            names = list(item)
            inputs = self.features_of(names, f"the keys of {whose}")
            x = item[inputs[0]] if len(inputs) == 1 else {name: item[name] for name in inputs}
            return x, item[self.target_of(names, f"the keys of {whose}")]
        got = type(item).__name__
        if isinstance(item, tuple | list):
            got += f" of {len(item)}"
        raise ValueError(f"{whose} must give pairs (x, y), or dicts with a `data.target`, got {got}.")


def as_input(value: Any, name: str) -> Tree:
    """An input as a tree of tensors; images, of PIL or uint8 arrays, with channels first."""
    if isinstance(value, Tensor):  # most are
        return value[None] if value.dtype == torch.uint8 and value.ndim == 2 else value
    return _converted(_input_tensor, value, name)


def as_target(value: Any, name: str) -> Tree:
    """A target as a tree of tensors; a whole number is a class, and an image a class for each pixel ``[H, W]``."""
    return _converted(_target_tensor, value, name)


def class_of(target: Any) -> int | None:
    """A target that is one whole number, such as a class; None of any other."""
    try:
        return operator.index(target)
    except TypeError:
        return None


def _converted(convert: Callable[[Any, str], Tensor], value: Any, name: str) -> Tree:
    """A tree of what is converted; a list of nothing but numbers is one tensor."""
    if isinstance(value, Mapping):
        return {key: _converted(convert, part, f"{name}[{key!r}]") for key, part in value.items()}
    if isinstance(value, tuple | list) and not _is_numbers(value):
        return _rebuilt(value, [_converted(convert, part, f"{name}[{i}]") for i, part in enumerate(value)])
    return convert(value, name)


def _input_tensor(value: Any, name: str) -> Tensor:
    if _is_pil(value):
        if value.mode not in ("L", "RGB"):
            raise ValueError(f"{name} must be a grey (L) or RGB image, got mode {value.mode}.")
        value = np.array(value)
    if isinstance(value, Tensor) and value.dtype == torch.uint8 and value.ndim == 2:
        return value[None]
    if isinstance(value, np.ndarray) and value.dtype == np.uint8:
        if value.ndim == 2:
            value = value[..., None]
        if value.ndim == 3 and value.shape[2] <= 4:
            return torch.from_numpy(np.ascontiguousarray(value.transpose(2, 0, 1)))
    return _as_tensor(value, name)


def _target_tensor(value: Any, name: str) -> Tensor:
    if _is_pil(value):
        return torch.from_numpy(np.array(value).astype(np.int64))
    label = class_of(value)
    return _as_tensor(value, name) if label is None else torch.tensor(label)


def _is_pil(value: Any) -> bool:
    return hasattr(value, "getbands")


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
