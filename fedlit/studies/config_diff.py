"""What differs between the configurations of a study's cells.

Before the runs: arguments that rows inherit. Where an option is given another class, arguments of the same name that a
recipe gave the class before are inherited; a column that names a partition may thus mean another one for a row whose
recipe has a partition of its own. After the runs: options that differ between rows or columns, as recorded.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from fedlit.studies.options import flat, flat_options
from fedlit.studies.results import Results
from fedlit.studies.runs import Run
from fedlit.studies.series import outcomes_of
from fedlit.studies.study import Cell

SEEDS = ("seed_everything", "data.partition_seed")
NOT_COMPARED = (
    *SEEDS,
    "ckpt_path",
    "trainer.default_root_dir",
    "trainer.logger",
    "trainer.enable_progress_bar",
    "trainer.report",
    "trainer.enable_checkpointing",
)
DATA = "data."
EFFORT = ("trainer.num_rounds", "trainer.local_epochs")
ABSENT = "–"  # an option that a row's method does not have
Configs = Mapping[Cell, Mapping[str, Any]]


def inherited_arguments(planned: Mapping[Cell, list[Run]]) -> list[str]:
    """A line for each argument of a class named by a column that differs between rows which do not set it."""
    columns: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for cell, runs in planned.items():
        _, of_column, of_row = cell.options
        own = [_short(option) for option, _ in flat_options(of_row)]
        for option in _named(of_column):
            if not any(name.startswith(option) or option.startswith(f"{name}.") for name in own):
                columns[cell.column, option][cell.row] = _arguments(runs[0].config, option)
    lines = [line for (column, option), rows in columns.items() for line in _describe(column, option, rows)]
    return list(dict.fromkeys(lines))


def _named(options: Mapping[str, Any]) -> Iterator[str]:
    """Options that may be given a class, with arguments or by its name alone.

    A recipe's method and data are meant to keep what the column does not mention.
    """
    for option, _ in flat_options(options):
        if option not in ("model", "data"):
            yield _short(option)


def _short(option: str) -> str:
    """The option as one would type it."""
    return option.replace(".init_args", "")


def _arguments(config: Mapping[str, Any], option: str) -> Mapping[str, Any]:
    """The arguments of the class that an option has in a resolved configuration."""
    found: Any = config
    for name in option.split("."):
        inner = found.get("init_args", {})
        found = found[name] if name in found else inner.get(name, {})
    return found.get("init_args", {}) if isinstance(found, Mapping) else {}


def _describe(column: str, option: str, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """A line for each argument whose value differs between rows: the most frequent value is the usual one."""
    for argument in sorted({name for arguments in rows.values() for name in arguments}):
        by_value: dict[str, list[str]] = defaultdict(list)
        for row, arguments in rows.items():
            by_value[json.dumps(arguments.get(argument), sort_keys=True)].append(row)
        usual = max(by_value, key=lambda value: len(by_value[value]))
        for value, differing in by_value.items():
            if value != usual:
                yield (
                    f"{column}: `{option}.{argument}` is {value} in {', '.join(differing)} and {usual} elsewhere, "
                    "inherited from another class of the recipe; set it in the column for all."
                )


def configs(results: Results) -> dict[Cell, dict[str, Any]]:
    """Every option of each cell's first finished run."""
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
    """How long rows train, by option, where recipes differ in it and no row sets it."""
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


def differing_options(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Options that are not the same in all configurations, by dotted names; seeds and folders aside.

    Example:
        >>> differing_options([{"model.alpha": 0.5, "seed_everything": 1}, {"model.alpha": 0.7, "seed_everything": 2}])
        ['model.alpha']
    """
    configs = list(configs)
    names = sorted({name for config in configs for name in config if name not in NOT_COMPARED})
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]
