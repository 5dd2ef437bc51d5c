"""The public pool: samples that everybody has, without their labels."""

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from fedlit.data.assignment import split_off
from fedlit.data.datasets import Images


@dataclass(frozen=True, eq=False)
class PublicPool:
    """Raw inputs ``[N, ...]``; the labels are hidden and only revealed to compute an upper bound."""

    x: Tensor
    _hidden: Tensor = field(repr=False)

    def __len__(self) -> int:
        return len(self.x)

    @property
    def num_bytes(self) -> int:
        return self.x.numel() * self.x.element_size()

    def targets(self, reveal: bool = False) -> Tensor:
        """-1 for every sample, unless the labels are revealed."""
        if reveal:
            return self._hidden
        return torch.full((len(self.x),), -1)

    def class_shares(self, num_classes: int) -> Tensor:
        """Fraction of each class ``[C]``, which reveals labels, too."""
        return torch.bincount(self._hidden, minlength=num_classes) / max(len(self.x), 1)


def set_apart(images: Images, public: float | Literal["valid"], seed: int) -> tuple[Images, PublicPool, np.ndarray]:
    """The data set without the pool's labels, the pool, and which training samples are private.

    Args:
        images: All of the data set.
        public: A fraction in [0, 1) of every class of the training set, or the data set's `valid`
            part.
        seed: Draws the fraction.
    """
    private = np.arange(len(images.train_y))
    pooled = np.empty(0, dtype=np.int64)
    if public == "valid":
        if images.valid_x is None or images.valid_y is None:
            raise ValueError("`data.public: valid` needs a data set with a `valid` part (cinic10).")
        pool = PublicPool(images.valid_x, images.valid_y)
    else:
        if public > 0:
            private, pooled = split_off(images.labels("train"), public, seed)
        pool = PublicPool(images.train_x[pooled], images.train_y[pooled])
    hidden = images.train_y.clone()
    hidden[pooled] = -1
    return replace(images, train_y=hidden, valid_x=None, valid_y=None), pool, private
