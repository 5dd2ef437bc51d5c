"""The public pool: samples that everybody has, without their labels."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedlit.data.assignment import split_off
from fedlit.data.loaded import without_targets
from fedlit.data.parts import Part, Splits
from fedlit.data.trees import Tree


@dataclass(frozen=True, eq=False)
class PublicPool:
    """Raw inputs; the targets are hidden and only revealed to compute an upper bound.

    Attributes:
        index: Places of the samples in the training set, if they are of it.
    """

    _part: Part = field(repr=False)
    index: np.ndarray

    def __len__(self) -> int:
        return len(self._part)

    @property
    def x(self) -> Tree:
        """Inputs ``[N, ...]``, where they are in memory."""
        return self._part.x

    @property
    def num_bytes(self) -> int:
        return self._part.num_bytes

    @property
    def _hidden(self) -> Tree:
        return self._part.y

    def targets(self, reveal: bool = False) -> Tree:
        """-1 for every sample, unless the targets are revealed."""
        if reveal:
            return self._hidden
        return without_targets(self._hidden, torch.ones(len(self), dtype=torch.bool))

    def class_shares(self, num_classes: int) -> Tensor:
        """Fraction of each class ``[C]``, which reveals labels, too."""
        labels = self._part.labels
        if labels is None:
            raise ValueError("The public pool has no classes: targets of the data are none.")
        return torch.bincount(torch.from_numpy(labels), minlength=num_classes) / max(len(self), 1)


def set_apart(splits: Splits, public: float | Literal["valid"], seed: int) -> tuple[Splits, PublicPool, np.ndarray]:
    """The data set without the pool's labels, the pool, and which training samples are private.

    Args:
        splits: All of the data set.
        public: A fraction in [0, 1) of every class of the training set, or the data set's `valid`
            part.
        seed: Draws the fraction.
    """
    train = splits.train
    private = np.arange(len(train))
    pooled = np.empty(0, dtype=np.int64)
    if public == "valid":
        if splits.valid is None:
            raise ValueError("`data.public: valid` needs a data set with a `valid` part (cinic10).")
        return replace(splits, train=train.hiding(pooled), valid=None), PublicPool(splits.valid, pooled), private
    if public > 0:
        labels = np.zeros(len(train), np.int64) if train.labels is None else train.labels
        private, pooled = split_off(labels, public, seed)
    pool = PublicPool(train.taken(pooled), pooled)
    return replace(splits, train=train.hiding(pooled), valid=None), pool, private
