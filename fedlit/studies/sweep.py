"""Sweeps: each cell of a study takes the best of several settings, selected before the table's runs are made.

The settings are a study of their own: every cell with every combination of the values of the swept options that its
configuration has, over `tune_seeds`, which are not the table's, measured on the clients' validation samples and not on
the test set. The setting with the best mean over these seeds is chosen, the first of those that are equal.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from typing import Any

import pandas as pd

from fedlit.studies.measure import Measure
from fedlit.studies.options import flat
from fedlit.studies.results import Estimate, Results, estimate
from fedlit.studies.study import ON_TEST_SET, ONLY_COLUMN, Cell, Study
from fedlit.studies.tables import NONE, Bold, Table, measured, plus_minus


@dataclass(frozen=True)
class Setting:
    """Values of the swept options for a cell.

    Attributes:
        cell: Of the study.
        values: By option.
        trial: The cell with these values, in the study of settings.
    """

    cell: Cell
    values: Mapping[str, Any]
    trial: Cell


def settings_of(study: Study, config_of: Callable[[Cell], Mapping[str, Any]]) -> list[Setting]:
    """Every setting of every cell, by the options that its configuration has; a cell without any has none."""
    found = []
    known: set[str] = set()
    for cell in study.cells:
        names = flat(config_of(cell))
        options = [option for option in study.sweep if _has(names, option)]
        known.update(options)
        for values in product(*(study.sweep[option] for option in options)) if options else ():
            setting = dict(zip(options, values, strict=True))
            found.append(Setting(cell, setting, _trial(study, cell, setting)))
    for option in study.sweep:
        if option not in known:
            raise ValueError(f"`sweep`: `{option}` is not an option of {', '.join(study.rows)}.")
    return found


def _has(names: Iterable[str], option: str) -> bool:
    """Whether an option is among dotted names, as a value or as a class with arguments."""
    short = option.replace(".init_args", "")
    return any(name == short or name.startswith(f"{short}.") for name in names)


def _trial(study: Study, cell: Cell, values: Mapping[str, Any]) -> Cell:
    name = describe(values)
    column = name if cell.column == ONLY_COLUMN else f"{cell.column}, {name}"
    measure = _tune_measure(study, cell.measure)
    return replace(cell, column=column, options=(*cell.options, values), measure=measure, paper=None)


def describe(values: Mapping[str, Any]) -> str:
    """A setting in a line.

    Example:
        >>> describe({"model.mu": 0.1, "data.partition": {"class_path": "Shards"}})
        'model.mu=0.1, data.partition={"class_path": "Shards"}'
    """
    return ", ".join(f"{option}={_shown(value)}" for option, value in values.items())


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _tune_measure(study: Study, measure: Measure) -> Measure:
    """The study's own, or the cell's measure on the clients' validation samples in place of the test set."""
    if study.tune_measure:
        return Measure.read(study.tune_measure)
    if not measure.is_by_round:
        return Measure.read({})
    at = "last" if measure.is_to_target else measure.at
    return replace(measure, metric=measure.metric.replace(ON_TEST_SET, "_on_own"), at=at, target=None)


def not_swept(study: Study, settings: Iterable[Setting]) -> Iterator[str]:
    """A line for each option that some rows lack."""
    settings = list(settings)
    for option in study.sweep:
        swept = {setting.cell for setting in settings if option in setting.values}
        others = dict.fromkeys(cell.row for cell in study.cells if cell not in swept)
        if others:
            verb = "has" if len(others) == 1 else "have"
            yield f"{', '.join(others)} {verb} no `{option}`, which is not swept there."


def study_of_settings(study: Study, settings: Iterable[Setting]) -> Study:
    """The study whose cells are the settings."""
    trials = tuple(setting.trial for setting in settings)
    has_newcomers = any(trial.measure.over == "newcomers" for trial in trials)
    return replace(
        study,
        title=f"Settings of: {study.title}",
        columns=tuple(dict.fromkeys(trial.column for trial in trials)),
        cells=trials,
        seeds=study.tune_seeds,
        adapt=study.adapt if has_newcomers else None,
        sweep={},
    )


@dataclass(frozen=True)
class Selection:
    """Settings, what is known of their runs, and which are chosen.

    Attributes:
        study: With the sweep.
        settings: Every setting of every cell.
        results: Of the study of settings.
    """

    study: Study
    settings: list[Setting]
    results: Results

    @cached_property
    def found(self) -> list[tuple[Setting, Measure, Estimate]]:
        """Every setting, what it is selected by, and what it comes to over the seeds that are done."""
        found = []
        for setting in self.settings:
            trial = self.results.study.cell(setting.trial.row, setting.trial.column)  # its measure is complete
            assert trial is not None
            found.append((setting, trial.measure, estimate(list(self.results.values(trial).values()))))
        return found

    @cached_property
    def chosen(self) -> dict[Cell, Setting]:
        """By cell, the best of the settings that have a number of every seed; none as long as runs are missing."""
        best: dict[Cell, tuple[float, Setting]] = {}
        for setting, measure, value in self.found:
            gain = value.mean if measure.is_better_high else -value.mean
            is_known = setting.cell not in self.waiting and value.n == len(self.study.tune_seeds)
            if is_known and (setting.cell not in best or gain > best[setting.cell][0]):
                best[setting.cell] = gain, setting
        return {cell: setting for cell, (_, setting) in best.items()}

    @cached_property
    def waiting(self) -> set[Cell]:
        """Cells of which runs are missing that have not failed."""
        runs = self.results.runs[self.results.runs["status"] == "missing"]
        places = set(zip(runs["row"], runs["column"], strict=True))
        return {setting.cell for setting in self.settings if (setting.trial.row, setting.trial.column) in places}

    @property
    def frame(self) -> pd.DataFrame:
        """A line for each setting: settings.csv."""
        lines = []
        for setting, measure, value in self.found:
            line = {"row": setting.cell.row, "column": setting.cell.column}
            line |= {option: _shown(setting.values.get(option, "")) for option in self.study.sweep}
            numbers = {"runs": len(self.study.tune_seeds), "n": value.n, "mean": value.mean, "sd": value.sd}
            is_chosen = self.chosen.get(setting.cell) == setting
            lines.append({**line, "measure": str(measure), **numbers, "chosen": is_chosen})
        return pd.DataFrame(lines)

    @property
    def unsettled(self) -> set[Cell]:
        """Cells for which no setting is chosen: runs are missing, or each setting has one that failed."""
        return {setting.cell for setting in self.settings} - self.chosen.keys()

    @property
    def settled(self) -> Study:
        """The study with the chosen settings."""
        cells = []
        for cell in self.study.cells:
            values = [self.chosen[cell].values] if cell in self.chosen else []
            cells.append(replace(cell, options=(*cell.options, *values)))
        return replace(self.study, cells=tuple(cells))

    @property
    def edges(self) -> list[str]:
        """A line for each chosen value that is the least or largest of its list: a better one may lie beyond."""
        lines = []
        for cell, setting in self.chosen.items():
            for option, value in setting.values.items():
                values = self.study.sweep[option]
                others = [other for other in map(_number, values) if other is not None]
                if len(others) == len(values) and _number(value) in (min(others), max(others)):
                    listed = ", ".join(map(_shown, values))
                    where = f"the chosen `{option}` {_shown(value)} is at the edge of {listed}"
                    lines.append(f"{cell}: {where}; a value beyond it may be better.")
        return lines

    @property
    def table(self) -> Table:
        """Every setting with its number, the chosen one of each cell in bold."""
        rows = []
        for setting, measure, value in self.found:
            text = plus_minus(value.mean, value.sd, measure) if value.n else NONE
            if value.n < len(self.study.tune_seeds):
                text += f" ({value.n}/{len(self.study.tune_seeds)})"
            shown = {option: _shown(setting.values.get(option, NONE)) for option in self.study.sweep}
            is_chosen = self.chosen.get(setting.cell) == setting
            rows.append({**shown, "selected by": Bold(text) if is_chosen else text})
        seeds = ", ".join(str(pair.training) for pair in self.study.tune_seeds)
        note = (
            f"Selected by: {measured(self.results.study.cells)}; mean ± standard deviation over seeds of their own "
            f"({seeds}), which are in no other table. Bold: the chosen setting."
        )
        frame = pd.DataFrame(rows, index=[str(setting.cell) for setting in self.settings], dtype=object)
        return Table("All settings", frame, note)


def _number(value: Any) -> float | None:
    try:
        return None if isinstance(value, bool) else float(value)
    except (TypeError, ValueError):
        return None
