"""The results of a study: a line for each run and a summary for each cell, from the records of the runs.

Two rows are run with the same pairs of seeds, so what is looked at is the difference within each pair, by scipy:

    d_i = a_i - b_i,    mean(d) ± t_{0.975, n-1} sd(d) / sqrt(n),    p of the paired t-test.

A p-value is of one comparison; nothing is corrected for there being many.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import nan
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from fedlit.records.rows import POOLED
from fedlit.studies.measure import TO_TARGET, Measure, OverClients
from fedlit.studies.outcome import Outcome, number_of, over_clients
from fedlit.studies.study import Cell, SeedPair, Study

RUN_COLUMNS = (
    "row",
    "column",
    "training_seed",
    "partition_seed",
    "status",
    "value",
    "worst_client",
    "worst_tenth",
    "spread",
    "better_than_alone",
    "rounds",
    "bytes",
    "seconds",
    *TO_TARGET,
    "left_out",
    "folder",
)
OVER_CLIENTS: dict[str, OverClients] = {"worst_client": "worst", "worst_tenth": "worst_tenth", "spread": "spread"}
AVERAGED = ("worst_client", "worst_tenth", "spread", "better_than_alone", "rounds", "bytes", "seconds", *TO_TARGET)
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


def results_of(
    study: Study,
    outcomes: Mapping[tuple[Cell, SeedPair], Outcome],
    failures: Mapping[tuple[Cell, SeedPair], str],
) -> "Results":
    """The results of a study's runs; each cell's measure is completed by what its first run recorded."""
    known: dict[Cell, Cell] = {}
    for (cell, _), outcome in outcomes.items():
        if cell not in known:
            known[cell] = replace(cell, measure=cell.measure.for_run(outcome.directions))
    cells = tuple(known.get(cell, cell) for cell in study.cells)
    return Results(
        replace(study, cells=cells),
        {(known[cell], seeds): outcome for (cell, seeds), outcome in outcomes.items()},
        {(known.get(cell, cell), seeds): reason for (cell, seeds), reason in failures.items()},
    )


@dataclass(frozen=True)
class Results:
    """A study and what is known of its runs.

    Attributes:
        study: What was asked.
        outcomes: The records of every run that is done, by cell and seeds.
        failures: Why a run came to no end, by cell and seeds.
    """

    study: Study
    outcomes: Mapping[tuple[Cell, SeedPair], Outcome]
    failures: Mapping[tuple[Cell, SeedPair], str]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A line for each cell and pair of seeds, done or not: runs.csv."""
        lines = []
        for seeds in self.study.seeds:
            for cell in self.study.cells:
                lines.append(self._run(cell, seeds))
        return pd.DataFrame(lines, columns=list(RUN_COLUMNS))

    @cached_property
    def summary(self) -> pd.DataFrame:
        """A line for each cell: summary.csv."""
        return pd.DataFrame([self._summary(cell) for cell in self.study.cells])

    def runs_of(self, cell: Cell) -> pd.DataFrame:
        """The lines of runs.csv of a cell, done or not."""
        return self.runs[(self.runs["row"] == cell.row) & (self.runs["column"] == cell.column)]

    def done_runs_of(self, cell: Cell) -> pd.DataFrame:
        """The lines of a cell's runs that are done."""
        runs = self.runs_of(cell)
        return runs[runs["status"] == "done"]

    def outcomes_of(self, cell: Cell) -> list[tuple[SeedPair, Outcome]]:
        """The runs of a cell that are done, in the order of the study's seeds."""
        return [(seeds, self.outcomes[cell, seeds]) for seeds in self.study.seeds if (cell, seeds) in self.outcomes]

    def values(self, cell: Cell) -> dict[SeedPair, float]:
        """The measured number of every run that is done and, if there is a target, reached it."""
        return self._values.get(cell, {})

    @cached_property
    def _values(self) -> dict[Cell, dict[SeedPair, float]]:
        """Of every cell, once: each comparison asks for them."""
        found: dict[Cell, dict[SeedPair, float]] = {}
        for (cell, seeds), outcome in self.outcomes.items():
            number = number_of(outcome, cell.measure)
            if number is not None:
                found.setdefault(cell, {})[seeds] = number
        return found

    def difference(self, cell: Cell, other: Cell) -> Estimate:
        """The difference of two cells over the pairs of seeds that both have."""
        return paired(self.values(cell), self.values(other))

    def against_baseline(self, cell: Cell) -> Estimate | None:
        """The difference to the baseline's cell of the same column; None for the baseline itself, and other units."""
        baseline = self.study.cell(self.study.baseline, cell.column)
        if baseline is None or baseline == cell or not cell.measure.is_like(baseline.measure):
            return None
        return self.difference(cell, baseline)

    def is_best(self, cell: Cell) -> bool:
        """Whether the cell is ahead of every other of its column, by intervals that exclude 0."""
        column = [other for other in self.study.cells if other.column == cell.column and other != cell]
        others = [other for other in column if cell.measure.is_like(other.measure)]
        sign = 1 if cell.measure.is_better_high else -1
        for other in others:
            difference = self.difference(cell, other)
            if not difference.excludes_zero or sign * difference.mean < 0:
                return False
        return bool(others)

    def _run(self, cell: Cell, seeds: SeedPair) -> dict[str, Any]:
        status = "failed" if (cell, seeds) in self.failures else "missing"
        places = (cell.row, cell.column, seeds.training, seeds.partition, status)
        line: dict[str, Any] = {**dict.fromkeys(RUN_COLUMNS, nan), **dict(zip(RUN_COLUMNS, places, strict=False))}
        outcome = self.outcomes.get((cell, seeds))
        if outcome is None:
            return line | {"folder": ""}
        line |= {
            "status": "done",
            "value": number_of(outcome, cell.measure),
            "better_than_alone": self._better_than_alone(cell, seeds),
            "rounds": len(outcome.rounds),
            "bytes": outcome.total_bytes,
            "seconds": outcome.total_seconds,
            "left_out": len(outcome.left_out),
            "folder": str(outcome.folder),
        }
        values = client_values(outcome, cell.measure)
        if values is not None:
            for column, kind in OVER_CLIENTS.items():
                measure = replace(cell.measure, over_clients=kind)
                line[column] = float(over_clients(values.to_frame().T, measure).iloc[0])
        if cell.measure.target is not None:
            line |= {at: number_of(outcome, replace(cell.measure, at=at)) for at in TO_TARGET}
        return line

    def _better_than_alone(self, cell: Cell, seeds: SeedPair) -> float:
        """The share of clients who do better than the same clients who train alone; nan without such a run."""
        for (alone, pair), outcome in self.outcomes.items():
            method = str(outcome.config.get("model", {}).get("class_path", "")).rpartition(".")[2]
            if (method, alone.column, pair) == ("LocalOnly", cell.column, seeds) and cell.measure.is_like(
                alone.measure
            ):
                ours = client_values(self.outcomes[cell, seeds], cell.measure)
                theirs = client_values(outcome, alone.measure)
                if alone != cell and ours is not None and theirs is not None and ours.index.equals(theirs.index):
                    return float((ours > theirs if cell.measure.rises else ours < theirs).mean())
        return nan

    def _summary(self, cell: Cell) -> dict[str, Any]:
        done = self.done_runs_of(cell)
        found = estimate(list(self.values(cell).values()))
        difference = self.against_baseline(cell) or estimate([])
        return {
            "row": cell.row,
            "column": cell.column,
            "measure": str(cell.measure),
            "runs": len(self.runs_of(cell)),
            "done": len(done),
            **{name: getattr(found, name) for name in ("n", "mean", "sd", "low", "high")},
            "difference": difference.mean,
            "difference_low": difference.low,
            "difference_high": difference.high,
            "p": difference.p,
            "is_best": self.is_best(cell),
            "paper": cell.paper,
            **{name: done[name].astype(float).mean() for name in AVERAGED},
        }


def client_values(outcome: Outcome, measure: Measure) -> pd.Series | None:
    """Every client's value in the end, or in the best round where that is measured; None if it is not of clients."""
    values = outcome.by_client(measure)
    if list(values.columns) == [POOLED] or measure.client is not None:
        return None
    curve = over_clients(values, measure)
    if measure.at != "best" or curve.isna().all():
        return values.iloc[-1].dropna()
    best = curve.idxmax() if measure.rises else curve.idxmin()
    return values.loc[best].dropna()
