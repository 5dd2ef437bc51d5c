"""The results of a study: a line for each run and a summary for each cell, from the records of the runs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import nan
from typing import Any

import pandas as pd

from fedlit.records.rows import POOLED
from fedlit.studies.measure import TO_TARGET, Measure, OverClients
from fedlit.studies.outcome import Outcome, number_of, over_clients
from fedlit.studies.statistics import Estimate, estimate, paired
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
AVERAGED = ("worst_client", "worst_tenth", "spread", "better_than_alone", "rounds", "bytes", "seconds", *TO_TARGET)


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
        line: dict[str, Any] = dict.fromkeys(RUN_COLUMNS, nan)
        line |= {
            "row": cell.row,
            "column": cell.column,
            "training_seed": seeds.training,
            "partition_seed": seeds.partition,
            "status": "missing",
            "folder": "",
        }
        outcome = self.outcomes.get((cell, seeds))
        if outcome is None:
            if (cell, seeds) in self.failures:
                line["status"] = "failed"
            return line
        line |= {
            "status": "done",
            "value": number_of(outcome, cell.measure),
            "rounds": len(outcome.rounds),
            "bytes": outcome.total_bytes,
            "seconds": outcome.total_seconds,
            "left_out": len(outcome.left_out),
            "folder": str(outcome.folder),
        }
        line |= _over_clients(outcome, cell.measure)
        line |= _to_target(outcome, cell.measure)
        line["better_than_alone"] = self._better_than_alone(cell, seeds)
        return line

    def _better_than_alone(self, cell: Cell, seeds: SeedPair) -> float:
        """The share of clients who do better than the same clients who train alone."""
        alone = self.alone(cell.column)
        if alone is None or alone == cell or (alone, seeds) not in self.outcomes:
            return nan
        if not cell.measure.is_like(alone.measure):
            return nan
        ours = client_values(self.outcomes[cell, seeds], cell.measure)
        theirs = client_values(self.outcomes[alone, seeds], alone.measure)
        if ours is None or theirs is None or not ours.index.equals(theirs.index):
            return nan
        better = ours > theirs if cell.measure.rises else ours < theirs
        return float(better.mean())

    def alone(self, column: str) -> Cell | None:
        """The cell of a column whose clients train alone, if there is one."""
        for (cell, _), outcome in self.outcomes.items():
            method = str(outcome.config.get("model", {}).get("class_path", ""))
            if cell.column == column and method.rpartition(".")[2] == "LocalOnly":
                return cell
        return None

    def _summary(self, cell: Cell) -> dict[str, Any]:
        done = self.done_runs_of(cell)
        found = estimate(list(self.values(cell).values()))
        line: dict[str, Any] = {
            "row": cell.row,
            "column": cell.column,
            "measure": str(cell.measure),
            "runs": len(self.runs_of(cell)),
            "done": len(done),
            "n": found.n,
            "mean": found.mean,
            "sd": found.sd,
            "low": found.low,
            "high": found.high,
        }
        difference = self.against_baseline(cell)
        if difference is None:
            difference = estimate([])
        line |= {
            "difference": difference.mean,
            "difference_low": difference.low,
            "difference_high": difference.high,
            "p": difference.p,
            "is_best": self.is_best(cell),
            "paper": cell.paper,
        }
        for name in AVERAGED:
            line[name] = done[name].astype(float).mean()
        return line


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


def _over_clients(outcome: Outcome, measure: Measure) -> dict[str, float]:
    values = client_values(outcome, measure)
    if values is None:
        return {}
    frame = values.to_frame().T
    kinds: dict[str, OverClients] = {"worst_client": "worst", "worst_tenth": "worst_tenth", "spread": "spread"}
    found = {}
    for column, kind in kinds.items():
        series = over_clients(frame, replace(measure, over_clients=kind))
        found[column] = float(series.iloc[0])
    return found


def _to_target(outcome: Outcome, measure: Measure) -> dict[str, float | None]:
    """Rounds, bytes and seconds to the target, where there is one."""
    if measure.target is None:
        return {}
    found: dict[str, float | None] = {}
    for at in TO_TARGET:
        found[at] = number_of(outcome, replace(measure, at=at))
    return found
