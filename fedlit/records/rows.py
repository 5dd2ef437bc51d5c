"""The lines of a run's records: metrics, bytes sent, and a summary over clients.

Every metric says which model on whose data: ``global``, ``personal``, ``trained`` (the client's copy right after local
training) on ``own`` (the client's validation samples), ``own_test`` (its share of the test set, see `data.own_test`),
``pooled`` (the test set), ``unseen`` (clients that never train), ``train`` (what a method logs in its training step) or
``server`` (what it logs in ``aggregate``).
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

POOLED = "all"
CONVERGENCE = "epochs_to_converge"  # of a client that joins


@lru_cache
def cell(value: int | str) -> str:
    """A value as it stands in a line of a record: quoted where it must be, and never longer than its line.

    Example:
        >>> cell(3), cell("f1, macro"), cell("two\\nlines")
        ('3', '"f1, macro"', 'two\\\\nlines')
    """
    text = str(value)
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    if '"' in text or "," in text:
        text = '"' + text.replace('"', '""') + '"'
    return text


def line(cells: Sequence[int | str], value: float) -> str:
    """A line of a record that ends in a number, without its end."""
    return f"{','.join(map(cell, cells))},{value:.9g}"


def lines(rows: Iterable[tuple]) -> list[str]:
    """Rows as they stand in a file."""
    return [f"{row}\n" for row in rows]


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

    def __str__(self) -> str:
        return line(self[:-1], self.value)

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

    def __str__(self) -> str:
        return line(self[:-1], self.value)

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

    def __str__(self) -> str:
        return ",".join(map(cell, self))


def values_by_key(rows: Iterable[Row]) -> dict[str, list[float]]:
    """The clients' values of every metric, in order."""
    values: dict[str, list[float]] = defaultdict(list)
    for row in rows:
        values[row.key].append(row.value)
    return values


def summary(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Mean, minimum and maximum over clients of every metric: ``{"acc/global_on_own": {"mean": ...}}``.

    Example:
        >>> summary([Row(1, "s", 0, "global", "own", "acc", 0.5), Row(1, "s", 1, "global", "own", "acc", 1.0)])
        {'acc/global_on_own': {'mean': 0.75, 'min': 0.5, 'max': 1.0}}
    """
    found = {}
    for key, values in values_by_key(rows).items():
        found[key] = {"mean": float(np.mean(values)), "min": min(values), "max": max(values)}
    return found


def mean_of(sizes: Iterable[int], in_all: int) -> str:
    """Of how many clients a mean is in every round: a round may have some of them only.

    Args:
        sizes: Clients of each round.
        in_all: Clients of any round.

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
