"""Settings that are not the same in all rows of a column, though the column names them.

Where an option is given another class, arguments of the same name that a recipe gave the class before are kept. A
column that names a partition may so mean another one for a row whose recipe has its own.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from fedlit.studies.arguments import flat_options
from fedlit.studies.runs import Run
from fedlit.studies.study import Cell


def unlike_arguments(planned: Mapping[Cell, list[Run]]) -> list[str]:
    """A line for each argument of a class that a column names and that differs between rows which do not mention it."""
    columns: dict[tuple[str, str], dict[str, Mapping[str, Any]]] = defaultdict(dict)
    for cell, runs in planned.items():
        _, of_column, of_row = cell.options
        own = [_short(option) for option, _ in flat_options(of_row)]
        for option in _named(of_column):
            if not any(name.startswith(option) or option.startswith(f"{name}.") for name in own):
                columns[cell.column, option][cell.row] = _arguments(runs[0].config, option)
    lines = [line for (column, option), rows in columns.items() for line in _told(column, option, rows)]
    return list(dict.fromkeys(lines))


def _named(options: Mapping[str, Any]) -> Iterator[str]:
    """Options that may be given a class, with arguments or by its name alone.

    A recipe's method and data are meant to keep what the column does not mention.
    """
    for option, _ in flat_options(options):
        if option not in ("model", "data"):
            yield _short(option)


def _short(option: str) -> str:
    """As one would type it."""
    return option.replace(".init_args", "")


def _arguments(config: Mapping[str, Any], option: str) -> Mapping[str, Any]:
    """Of the class that an option has at last."""
    found: Any = config
    for name in option.split("."):
        inner = found.get("init_args", {})
        found = found[name] if name in found else inner.get(name, {})
    return found.get("init_args", {}) if isinstance(found, Mapping) else {}


def _told(column: str, option: str, rows: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    for argument in sorted({name for arguments in rows.values() for name in arguments}):
        by_value: dict[str, list[str]] = defaultdict(list)
        for row, arguments in rows.items():
            by_value[json.dumps(arguments.get(argument), sort_keys=True)].append(row)
        usual = max(by_value, key=lambda value: len(by_value[value]))
        for value, unlike in by_value.items():
            if value != usual:
                yield (
                    f"{column}: `{option}.{argument}` is {value} in {', '.join(unlike)} and {usual} elsewhere, kept "
                    "from another class of the recipe; give it in the column for all."
                )
