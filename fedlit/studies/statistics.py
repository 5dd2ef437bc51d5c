"""Intervals and p-values over pairs of seeds, by scipy.

Two rows are run with the same pairs of seeds, so what is looked at is the difference within each pair:

    d_i = a_i - b_i,    mean(d) ± t_{0.975, n-1} sd(d) / sqrt(n),    p of the paired t-test.

A p-value is of one comparison; nothing is corrected for there being many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import nan
from typing import Any

import numpy as np
from scipy import stats

LEVEL = 0.95
ROUNDING = 1e-12  # of equal differences of unequal numbers


@dataclass(frozen=True)
class Estimate:
    """A mean with its 95 % interval; without a spread (one value only) the interval is nan.

    Attributes:
        n: Values.
        mean: Their mean.
        sd: Their standard deviation, with n - 1.
        low: Where the interval begins.
        high: Where it ends.
        p: Of the mean being 0, two-sided.
    """

    n: int
    mean: float
    sd: float
    low: float
    high: float
    p: float

    @property
    def excludes_zero(self) -> bool:
        """Whether the interval lies on one side of 0."""
        return self.low > 0 or self.high < 0


def estimate(values: Sequence[float]) -> Estimate:
    """Mean, standard deviation, interval and p of some values.

    Example:
        >>> e = estimate([1.0, 2.0, 3.0])  # sd 1, t_{0.975, 2} = 4.303, so 2 ± 4.303 / sqrt(3)
        >>> round(e.low, 3), round(e.high, 3), round(e.p, 4)
        (-0.484, 4.484, 0.0742)
    """
    return _estimated(tuple(map(float, values)))


@lru_cache(maxsize=100_000)  # scipy takes a millisecond, and tables, figures and verdicts ask again
def _estimated(values: tuple[float, ...]) -> Estimate:
    numbers = np.asarray(values)
    n = len(numbers)
    if n == 0:
        return Estimate(0, nan, nan, nan, nan, nan)
    mean = float(numbers.mean())
    if n == 1:
        return Estimate(1, mean, nan, nan, nan, nan)
    sd = float(numbers.std(ddof=1))
    if sd <= ROUNDING * np.abs(numbers).max():  # equal pairs: nothing is uncertain, and a t-test would divide by 0
        return Estimate(n, mean, 0.0, mean, mean, 1.0 if mean == 0 else 0.0)
    test = stats.ttest_1samp(numbers, 0.0)
    interval = test.confidence_interval(LEVEL)
    return Estimate(n, mean, sd, float(interval.low), float(interval.high), float(test.pvalue))


def paired(a: Mapping[Any, float], b: Mapping[Any, float]) -> Estimate:
    """The difference a - b over the pairs of seeds that both have.

    Example:
        >>> paired({1: 3.0, 2: 5.0}, {1: 2.0, 2: 4.0, 3: 9.0}).mean
        1.0
    """
    common = sorted(a.keys() & b.keys())
    return estimate([a[seed] - b[seed] for seed in common])
