"""Samples that come one after the other: in every round a client has the next slice of what it holds.

Laws: one slice is the wrapped partition; the slices of a client are disjoint, and together all that it holds.
"""

import numpy as np

from fedlit.dealing import at_least, require
from fedlit.partition.base import Partition, Wrapper
from fedlit.partition.by_size import IID


class OverTime(Wrapper):
    """In every round a client has the next slice of its training samples, in the order of the data set.

    After the last slice it is the first again. Validation samples are the same in all rounds.

    Args:
        slices: Parts of a client's samples, which differ by at most one sample; 1 is all of them in every round.
        base: Who holds which samples; IID by default.
    """

    def __init__(self, slices: int, base: Partition | None = None) -> None:
        super().__init__(IID() if base is None else base)
        self.slices = at_least("slices", slices)
        self.over_time = self.slices > 1 or self.over_time

    def in_round(self, samples: np.ndarray, round: int) -> np.ndarray:
        there = self.base.in_round(samples, round)
        told = f"`slices`={self.slices} needs as many training samples of every client that has any"
        require(len(samples) == 0 or len(samples) >= self.slices, f"{told}, one has {len(samples)}.")
        if round == 0:
            return there
        in_time = np.argsort(samples, kind="stable")
        mine = np.array_split(in_time, self.slices)[(round - 1) % self.slices]
        is_mine = np.zeros(len(samples), dtype=bool)
        is_mine[mine] = True
        return there & is_mine
