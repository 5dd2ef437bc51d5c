"""The results of a study as its runs.csv has them; runs that it lacks are missing."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedlit.records.rows import CONVERGENCE
from fedlit.studies.measure import Direction
from fedlit.studies.results import RUN_COLUMNS, Results
from fedlit.studies.study import Cell, SeedPair, Study

DIRECTIONS: dict[str, Direction] = {"acc": "max", "loss": "min", CONVERGENCE: "min"}  # of runs of classification
SEEDS = ("training_seed", "partition_seed")
WORDS = ("row", "column", "status", "folder")


@dataclass(frozen=True)
class RecordedResults(Results):
    """A study whose runs are the lines of a runs.csv; runs that it lacks are missing.

    Attributes:
        lines: Of runs.csv.
    """

    lines: Sequence[Mapping[str, Any]]

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A line for each cell and pair of seeds, as recorded, or `missing`."""
        recorded = {}
        for line in self.lines:
            recorded[line["row"], line["column"], line["training_seed"], line["partition_seed"]] = line
        found = []
        for seeds in self.study.seeds:
            for cell in self.study.cells:
                missing = self._run(cell, seeds)
                found.append(recorded.get((cell.row, cell.column, seeds.training, seeds.partition), missing))
        return pd.DataFrame(found, columns=list(RUN_COLUMNS))

    @cached_property
    def _values(self) -> dict[Cell, dict[SeedPair, float]]:
        cells = {(cell.row, cell.column): cell for cell in self.study.cells}
        found: dict[Cell, dict[SeedPair, float]] = {}
        for line in self.runs.to_dict("records"):
            if line["status"] == "done" and pd.notna(line["value"]):
                cell = cells[line["row"], line["column"]]
                seeds = SeedPair(int(line["training_seed"]), int(line["partition_seed"]))
                found.setdefault(cell, {})[seeds] = float(line["value"])
        return found


def recorded_results(study: Study, path: Path) -> RecordedResults:
    """A study's results as a runs.csv has them.

    Args:
        study: What was asked; it may have more cells than were run.
        path: Of the runs.csv that `fedlit compare` wrote.
    """
    with path.open(newline="", encoding="utf-8") as file:
        lines = [_read(line) for line in csv.DictReader(file)]
    known = {(cell.row, cell.column) for cell in study.cells}
    for line in lines:
        if (line["row"], line["column"]) not in known:
            raise ValueError(f"{path} has a cell that its study lacks: {line['row']}, {line['column']}.")
    cells = tuple(replace(cell, measure=cell.measure.for_run(DIRECTIONS)) for cell in study.cells)
    return RecordedResults(replace(study, cells=cells), {}, {}, lines)


def _read(line: Mapping[str, str]) -> dict[str, Any]:
    """A line with its numbers: by `float`, which gives back the bits that were written; pandas need not."""
    read: dict[str, Any] = dict(line)
    for name in RUN_COLUMNS:
        if name in SEEDS:
            read[name] = int(line[name])
        elif name not in WORDS:
            read[name] = float(line[name] or "nan")
    return read
