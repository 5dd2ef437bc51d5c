"""What differs between the configurations of a study's cells, as its runs recorded them."""

from collections.abc import Iterable, Mapping
from typing import Any

from fedlit.studies.arguments import flat_options
from fedlit.studies.questions import differing_options
from fedlit.studies.results import Results
from fedlit.studies.runs import flat
from fedlit.studies.series import outcomes_of
from fedlit.studies.study import Cell

DATA = "data."
EFFORT = ("trainer.num_rounds", "trainer.local_epochs")
ABSENT = "–"  # an option that a row's method does not have
Configs = Mapping[Cell, Mapping[str, Any]]


def configs(results: Results) -> dict[Cell, dict[str, Any]]:
    """Every option of each cell's first run that is done."""
    found = {}
    for cell in results.study.cells:
        for _, outcome in outcomes_of(results, cell):
            found[cell] = flat(outcome.config)
            break
    return found


def between_rows(results: Results) -> dict[str, dict[str, str]]:
    """Options that differ between rows of a column: by option, what each row has."""
    known = configs(results)
    groups = [[cell for cell in known if cell.column == column] for column in results.study.columns]
    return _values(known, _differing(known, groups), lambda cell: cell.row)


def between_columns(results: Results) -> dict[str, dict[str, str]]:
    """Options that differ between columns of a row: by option, what each column has."""
    known = configs(results)
    groups = [[cell for cell in known if cell.row == row] for row in results.study.rows]
    return _values(known, _differing(known, groups), lambda cell: cell.column)


def unequal_data(results: Results) -> dict[str, list[str]]:
    """Options of the data that differ between rows, by column: such rows cannot be compared."""
    known = configs(results)
    found = {}
    for column in results.study.columns:
        group = [cell for cell in known if cell.column == column]
        options = [name for name in _differing(known, [group]) if name.startswith(DATA)]
        if options:
            found[column] = options
    return found


def unequal_effort(results: Results) -> dict[str, str]:
    """How long rows train, by option, where their recipes differ in it and no row says so itself."""
    asked = {option for cell in results.study.cells for option, _ in flat_options(cell.options[-1])}
    found = {}
    for option, rows in between_rows(results).items():
        if option in EFFORT and option not in asked:
            found[option] = ", ".join(f"{row} {value}" for row, value in rows.items())
    return found


def _differing(known: Configs, groups: Iterable[list[Cell]]) -> list[str]:
    names: dict[str, None] = {}
    for group in groups:
        if group:
            names |= dict.fromkeys(differing_options(known[cell] for cell in group))
    return sorted(names)


def _values(known: Configs, options: Iterable[str], owner: Any) -> dict[str, dict[str, str]]:
    """By option, then by row or column; several values where it depends on the other, too."""
    found: dict[str, dict[str, str]] = {}
    for option in options:
        by_owner: dict[str, dict[str, None]] = {}
        for cell, config in known.items():
            value = str(config[option]) if option in config else ABSENT
            by_owner.setdefault(owner(cell), {})[value] = None
        found[option] = {name: " / ".join(values) for name, values in by_owner.items()}
    return found
