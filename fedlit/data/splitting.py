"""Parts that make one data set: they are of one kind, their classes are counted, and a test set may be set apart."""

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedlit.data.assignment import split_off
from fedlit.data.checks import MOST_CLASSES
from fedlit.data.normalisation import mean_std
from fedlit.data.parts import Part, Read, Splits, Stacked
from fedlit.data.trees import leaves, told

WHOLE = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32)


class Facts(NamedTuple):
    """What is published of a data set."""

    num_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Names(NamedTuple):
    """What a user calls inputs and targets of a part."""

    inputs: str
    targets: str


def splits_of(
    parts: Mapping[str, Part], names: Mapping[str, Names], facts: Facts | None = None, num_classes: int = 0
) -> Splits:
    """The checked data set; what is not published is taken from the data.

    Args:
        parts: `train`, `test` and perhaps `valid`.
        names: Of each.
        facts: Of a well-known data set.
        num_classes: How many there are at least; one that nobody has would be missed otherwise.
    """
    checked = {}
    for part in parts:
        checked[part] = _with_classes(parts[part], names[part].targets, facts)
        _check_inputs(checked[part], parts["train"], names[part].inputs, facts)
    measured = facts is None
    lowest_class = 0
    if facts is None:
        if not num_classes:
            lowest_class = _lowest_class(checked)
        facts = Facts(_num_classes(checked, names, num_classes), *_measured(checked["train"]))
    valid = checked.get("valid")
    return Splits(checked["train"], checked["test"], *facts, valid, measured, lowest_class)


def with_num_classes(splits: Splits, num_classes: int | None) -> Splits:
    """The data set with as many classes as the user says; None leaves them as they were counted."""
    if num_classes is None:
        return splits
    highest = -1
    for part in (splits.train, splits.test, splits.valid):
        if part is not None and part.labels is not None:
            highest = max(highest, int(part.labels.max()))
    if highest < 0:
        raise ValueError("`data.num_classes` has no meaning for these data: their targets are no classes.")
    if highest >= num_classes:
        raise ValueError(
            f"`data.num_classes` must be at least {highest + 1}, since labels go up to {highest}, got {num_classes}."
        )
    return replace(splits, num_classes=num_classes, lowest_class=0)


def with_test_set(train: Part, test_size: float, seed: int) -> tuple[Part, Part]:
    """Training and test samples: a fraction of every class is set apart at random."""
    labels = train.labels
    if labels is None:
        labels = np.zeros(len(train), np.int64)
    rest, apart = split_off(labels, test_size, seed)
    if not len(rest) or not len(apart):
        sizes = f"{len(rest)} samples to train on and {len(apart)} to test"
        raise ValueError(f"`data.test_size` {test_size} of {len(train)} samples leaves {sizes}.")
    return train.taken(rest), train.taken(apart)


def _with_classes(part: Part, name: str, facts: Facts | None) -> Part:
    """The part with its classes as int64; a target that is one whole number is a class."""
    if isinstance(part, Stacked) and isinstance(part.y, Tensor) and part.y.ndim == 1 and part.y.dtype in WHOLE:
        part = replace(part, y=part.y.long())
    labels = part.labels
    if labels is None and facts is not None:
        raise ValueError(f"{name} must be integers [{len(part)}], one per image, got {told(part.example[1])}.")
    if labels is not None and len(labels):
        _check_range(labels, name, facts)
    return part


def _check_range(labels: np.ndarray, name: str, facts: Facts | None) -> None:
    least = labels.min()
    most = labels.max()
    if facts is None and not 0 <= least <= most < MOST_CLASSES:
        told_range = f"{name} must be class indices, 0 to {MOST_CLASSES - 1}, got {least} to {most}"
        raise ValueError(f"{told_range}; what is no class must be a float.")
    if facts is not None and not 0 <= least <= most < facts.num_classes:
        raise ValueError(f"{name} must be class indices, in [0, {facts.num_classes}), got {least} to {most}.")


def _check_inputs(part: Part, train: Part, name: str, facts: Facts | None) -> None:
    x = part.example[0]
    if len(part) == 0 or any(leaf.numel() == 0 for leaf in leaves(x) if isinstance(leaf, Tensor)):
        raise ValueError(f"{name} must not be empty, got {told(x)}.")
    if isinstance(part, Stacked):
        _check_values(part, name)
    if facts is not None:
        is_right = isinstance(x, Tensor) and x.dtype == torch.uint8 and x.shape[1] == len(facts.mean)
        if not is_right:
            raise ValueError(
                f"{name} must be uint8 with {len(facts.mean)} channel(s), got [N, C, H, W] = {_kind(part)}."
            )
    is_padded = isinstance(part, Read) and part.reader.collate_fn is not None  # as long as the longest of a batch
    if not is_padded and told(x) != told(train.example[0]):
        raise ValueError(f"{name} must match the training images, {_kind(train)} but for N, got {_kind(part)}.")


def _check_values(part: Stacked, name: str) -> None:
    for leaf in (*leaves(part.x), *leaves(part.y)):
        if leaf.requires_grad:
            raise ValueError(f"{name} must be plain values, got a tensor that requires grad; give its `detach()`.")
        if len(leaf) != len(part):
            raise ValueError(f"{name} must have {len(part)} samples, one for each target, got {told(part.x)}.")
    x = part.x
    if isinstance(x, Tensor) and x.is_floating_point() and not x.isfinite().all():
        odd = (~x.isfinite()).nonzero()
        first = odd[0].tolist()
        others = "the only such value" if len(odd) == 1 else f"the first of {len(odd)} such values"
        raise ValueError(f"{name} must be finite, got {x[tuple(first)]:g} at {first}, {others}.")


def _kind(part: Part) -> str:
    """Dtypes and shapes of all inputs."""
    if isinstance(part, Stacked):
        return told(part.x)
    return f"{len(part)} of {told(part.example[0])}"


def _num_classes(parts: Mapping[str, Part], names: Mapping[str, Names], known: int) -> int:
    """One more than the highest class; 0 where targets are no classes."""
    highest = known - 1
    for part in parts:
        labels = parts[part].labels
        if (labels is None) != (parts["train"].labels is None):
            kinds = f"{told(parts['train'].example[1])} and {told(parts[part].example[1])}"
            raise ValueError(f"{names[part].targets} must be of the kind of {names['train'].targets}, got {kinds}.")
        if labels is not None:
            highest = max(highest, int(labels.max()))
    return highest + 1


def _lowest_class(parts: Mapping[str, Part]) -> int:
    """Of all parts together; 0 where targets are no classes."""
    labels = [part.labels for part in parts.values() if part.labels is not None]
    return min((int(some.min()) for some in labels), default=0)


def _measured(train: Part) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of images in memory; of those that are read, when it is known who shares which."""
    if isinstance(train, Read):
        return (), ()
    return mean_std([train.x])
