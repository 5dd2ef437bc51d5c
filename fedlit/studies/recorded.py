"""What a study found, from its runs.csv alone: the folders of its runs need not be there."""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import pandas as pd

from fedlit.studies.measure import Direction
from fedlit.studies.results import RUN_COLUMNS, Results
from fedlit.studies.seeds import SeedPair
from fedlit.studies.study import Cell, Study

DIRECTIONS: dict[str, Direction] = {"acc": "max", "loss": "min"}  # what runs of classification record
PLACE = ["row", "column", "training_seed", "partition_seed"]


@dataclass(frozen=True)
class RecordedResults(Results):
    """A study whose runs are told by the lines of a runs.csv; what is not among them is missing.

    Attributes:
        lines: Of runs.csv.
    """

    lines: pd.DataFrame

    @cached_property
    def runs(self) -> pd.DataFrame:
        """A line for each cell and pair of seeds, as recorded, or `missing`."""
        recorded = {tuple(line[name] for name in PLACE): line for line in self.lines.to_dict("records")}
        found = []
        for seeds in self.study.seeds:
            for cell in self.study.cells:
                missing = self._run(cell, seeds)
                found.append(recorded.get((cell.row, cell.column, *seeds), missing))
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
    lines = pd.read_csv(path, float_precision="round_trip", keep_default_na=False, na_values=[""])
    lines = lines.fillna({"column": "", "folder": ""})
    known = {(cell.row, cell.column) for cell in study.cells}
    for place in zip(lines["row"], lines["column"], strict=True):
        if place not in known:
            raise ValueError(f"{path} has a cell that its study lacks: {', '.join(place)}.")
    cells = tuple(replace(cell, measure=cell.measure.for_run(DIRECTIONS)) for cell in study.cells)
    return RecordedResults(replace(study, cells=cells), {}, {}, lines)
