"""The rows of a run's records: metrics, bytes sent, and a summary over clients.

Every metric says which model on whose data: ``global``, ``personal``, ``trained`` (the client's copy right after local
training) on ``own`` (the client's validation samples), ``own_test`` (its share of the test set, see `data.own_test`),
``pooled`` (the test set), ``unseen`` (clients that never train), ``train`` (what a method logs in its training step) or
``server`` (what it logs in ``aggregate``).
"""

import csv
import io
from collections import defaultdict
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

POOLED = "all"
CONVERGENCE = "epochs_to_converge"  # of a client that joins


def lines(rows: Iterable[tuple[Any, ...]]) -> list[str]:
    """Rows as they stand in a file, a line each: of a float, nine digits; of a name, no control characters.

    Example:
        >>> lines([("two\\nlines", "f1, macro", 3, 1 / 3)])
        ['two\\\\nlines,"f1, macro",3,0.333333333\\n']
    """
    file = io.StringIO()
    csv.writer(file, lineterminator="\n").writerows([_cell(value) for value in row] for row in rows)
    return file.getvalue().splitlines(keepends=True)


def _cell(value: Any) -> Any:
    if isinstance(value, str) and not value.isprintable():
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in value)
    return f"{value:.9g}" if isinstance(value, float | np.floating) else value


@lru_cache
def key(metric: str, model: str, data: str) -> str:
    """What a metric of a model on some data is called."""
    return f"{metric}/{model}_on_{data}"


class Row(NamedTuple):
    """One line of metrics.csv."""

    round: int
    stage: str
    client: int | str
    model: str
    data: str
    metric: str
    value: float

    @property
    def key(self) -> str:
        """Such as ``acc/global_on_own``."""
        return key(self.metric, self.model, self.data)


class EpochRow(NamedTuple):
    """One line of epochs.csv: a client's model after a local epoch, counted from 1."""

    round: int
    stage: str
    epoch: int
    client: int
    model: str
    data: str
    metric: str
    value: float

    def at_epoch(self) -> Row:
        """The row with its epoch in place of its round."""
        return Row(self.epoch, self.stage, self.client, self.model, self.data, self.metric, self.value)


class LedgerRow(NamedTuple):
    """One line of ledger.csv: what crossed the border of a client."""

    round: int
    client: int
    direction: str
    kind: str
    bytes: int


def summary(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Mean, minimum and maximum over clients of every metric: ``{"acc/global_on_own": {"mean": ...}}``.

    Example:
        >>> summary([Row(1, "s", 0, "global", "own", "acc", 0.5), Row(1, "s", 1, "global", "own", "acc", 1.0)])
        {'acc/global_on_own': {'mean': 0.75, 'min': 0.5, 'max': 1.0}}
    """
    found: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        found[row.key].append(row.value)
    return {
        key: {"mean": float(np.mean(values)), "min": min(values), "max": max(values)} for key, values in found.items()
    }


def mean_of(sizes: Iterable[int], in_all: int) -> str:
    """Of how many clients a mean is: of the `sizes` of each round, which may have some of them only.

    Example:
        >>> mean_of([3, 3], 3), mean_of([10, 10], 34), mean_of([8, 10], 10)
        ('mean of 3 clients', 'mean of 10 clients a round', 'mean of 8 to 10 clients a round')
    """
    sizes = sorted(sizes)
    if sizes[0] == in_all:
        return f"mean of {in_all} clients"
    number = str(sizes[0])
    if sizes[0] != sizes[-1]:
        number += f" to {sizes[-1]}"
    return f"mean of {number} clients a round"
