"""Trees of tensors: what a sample or a batch is made of. One tensor, or a dict, tuple or list of trees.

Invariant: whatever is done to a tree is done to each of its tensors, and its shape stays.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tree = Any  # a tensor, or a dict, tuple or list of trees


def mapped(function: Callable[..., Any], tree: Tree, *others: Tree) -> Tree:
    """The tree with the function's result in place of each leaf; of several trees of one shape, of leaves side by side.

    Example:
        >>> mapped(len, {"ids": torch.zeros(4, 2), "more": (torch.zeros(4),)})
        {'ids': 4, 'more': (4,)}
    """
    if isinstance(tree, Mapping):
        return {key: mapped(function, value, *(other[key] for other in others)) for key, value in tree.items()}
    if isinstance(tree, tuple | list):
        values = [mapped(function, *parts) for parts in zip(tree, *others, strict=True)]
        if hasattr(tree, "_fields"):  # a named tuple
            return type(tree)(*values)
        return tuple(values) if isinstance(tree, tuple) else values
    return function(tree, *others)


def leaves(tree: Tree) -> Iterator[Any]:
    """What is neither dict, tuple nor list, from left to right."""
    if isinstance(tree, Mapping):
        for value in tree.values():
            yield from leaves(value)
    elif isinstance(tree, tuple | list):
        for value in tree:
            yield from leaves(value)
    else:
        yield tree


def length(tree: Tree) -> int:
    """Samples of a tree ``[N, ...]``."""
    if isinstance(tree, Tensor):
        return len(tree)
    return len(next(leaves(tree)))


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
    """What the tensors of a tree hold; of another leaf, its length if it has one."""
    total = 0
    for leaf in leaves(tree):
        if isinstance(leaf, Tensor):
            total += leaf.numel() * leaf.element_size()
        elif hasattr(leaf, "nbytes"):
            total += leaf.nbytes
        elif hasattr(leaf, "__len__"):
            total += len(leaf)
    return total


def describe(tree: Tree, of_many: bool = False) -> str:
    """Dtypes and shapes, in words that are equal for samples of one kind; `of_many`, without their number.

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
    if isinstance(a, np.ndarray | np.generic) and a.dtype.kind in "biufc":
        return np.array_equal(a, b, equal_nan=True)
    if isinstance(a, Tensor):
        return np.array_equal(a.detach().cpu().numpy(), b.detach().cpu().numpy(), equal_nan=a.is_floating_point())
    try:
        return bool(a == b)
    except Exception:  # what compares element by element
        return repr(a) == repr(b)
