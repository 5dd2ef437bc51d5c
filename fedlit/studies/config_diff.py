"""What differs between configurations: of a study's cells, and of existing runs, which become a study by it.

Before the runs: arguments that rows inherit. Where an option is given another class, arguments of the same name that a
recipe gave the class before are inherited; a column that names a partition may thus mean another one for a row whose
recipe has a partition of its own. After the runs: options that differ between rows or columns, as recorded.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from fedlit.studies.options import flat, flat_options
from fedlit.studies.outcome import Outcome
from fedlit.studies.results import Results
from fedlit.studies.runs import Run
from fedlit.studies.study import ONLY_COLUMN, Cell, SeedPair, Study, build_study

NOT_COMPARED = (
    "seed_everything",
    "data.partition_seed",
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


def differing_options(configs: Iterable[Mapping[str, Any]]) -> list[str]:
    """Options that are not the same in all configurations, by dotted names; seeds and folders aside.

    Example:
        >>> differing_options([{"model.alpha": 0.5, "seed_everything": 1}, {"model.alpha": 0.7, "seed_everything": 2}])
        ['model.alpha']
    """
    configs = list(configs)
    names = sorted({name for config in configs for name in config if name not in NOT_COMPARED})
    return [name for name in names if any(config.get(name) != configs[0].get(name) for config in configs)]


def inherited_arguments(planned: Mapping[Cell, list[Run]]) -> list[str]:
    """A line for each argument of a class named by a column that differs between rows which do not set it."""
    by_option: dict[tuple[str, str], dict[str, dict[str, Any]]] = defaultdict(dict)
    for cell, runs in planned.items():
        _, of_column, of_row = cell.options[:3]
        own = [_short(option) for option, _ in flat_options(of_row)]
        config = flat(runs[0].config)
        for option in [_short(option) for option, _ in flat_options(of_column)]:
            is_own = any(name.startswith(option) or option.startswith(f"{name}.") for name in own)
            if option not in ("model", "data") and not is_own:  # a recipe keeps its method and data
                arguments = {name: value for name, value in config.items() if name.startswith(f"{option}.")}
                by_option[cell.column, option][cell.row] = arguments
    lines = []
    for (column, _), rows in by_option.items():
        for name in differing_options(rows.values()):
            values = ", ".join(f"{arguments.get(name)} in {row}" for row, arguments in rows.items())
            lines.append(
                f"{column}: `{name}` is {values}: inherited from the class that the recipe gave; set it in the column "
                "for all."
            )
    return list(dict.fromkeys(lines))


def _short(option: str) -> str:
    """The option as one would type it."""
    return option.replace(".init_args", "")


def differences(results: Results, between: Literal["row", "column"]) -> pd.DataFrame:
    """Options that differ between rows of a column, or between columns of a row: what each row or column has."""
    known = _configs(results)
    other = "column" if between == "row" else "row"
    names: set[str] = set()
    for group in {getattr(cell, other): None for cell in known}:
        names.update(differing_options(config for cell, config in known.items() if getattr(cell, other) == group))
    found: dict[str, dict[str, str]] = {}
    for name in sorted(names):
        values: dict[str, dict[str, None]] = {}
        for cell, config in known.items():
            values.setdefault(getattr(cell, between), {})[str(config.get(name, ABSENT))] = None
        found[name] = {owner: " / ".join(its) for owner, its in values.items()}  # it may depend on the other, too
    return pd.DataFrame.from_dict(found, orient="index").fillna("")


def _configs(results: Results) -> dict[Cell, dict[str, Any]]:
    """Every option of each cell's first finished run."""
    found: dict[Cell, dict[str, Any]] = {}
    for cell in results.study.cells:
        for _, outcome in results.outcomes_of(cell):
            found.setdefault(cell, flat(outcome.config))
    return found


def warnings(results: Results) -> list[str]:
    """What else than the method differs between rows: their data, or how long they train if no row asks for it."""
    known = _configs(results)
    lines = []
    for column in results.study.columns:
        group = [config for cell, config in known.items() if cell.column == column]
        options = [name for name in differing_options(group) if name.startswith(DATA)] if group else []
        if options:
            where = f" of {column}" if column else ""
            differing = ", ".join(options)
            lines.append(f"the rows{where} differ in their data, so methods alone are not compared: {differing}")
    asked = {option for cell in results.study.cells for given in cell.options[2:] for option, _ in flat_options(given)}
    table = differences(results, "row")
    for option in EFFORT:
        if option in table.index and option not in asked:
            values = ", ".join(f"{row} {value}" for row, value in table.loc[option].items())
            lines.append(f"the rows differ in how long they train: {option} is {values}; set it for all")
    return lines


# --- existing runs


def of_runs(folders: Iterable[Path], content: Mapping[str, Any]) -> tuple[Study, dict[tuple[Cell, SeedPair], Outcome]]:
    """A study of existing runs: options of the data that differ make columns, other options rows.

    Args:
        folders: Of runs, each with a config.yaml and a metrics.csv.
        content: Further keys of the study, such as `measure` and `baseline`.
    """
    outcomes = [Outcome(folder) for folder in folders]
    for outcome in outcomes:
        _check_run(outcome)
    configs = [flat(outcome.config) for outcome in outcomes]
    columns = [name for name in differing_options(configs) if name.startswith(DATA)]
    placed: dict[tuple[str, str], dict[SeedPair, Outcome]] = defaultdict(dict)
    for outcome, config in zip(outcomes, configs, strict=True):
        of_cell = placed[_row_name(config, configs), _name(config, columns)]
        pair = SeedPair(config.get("seed_everything", 0), config.get("data.partition_seed", 0))
        if pair in of_cell:
            raise ValueError(f"{of_cell[pair].folder} and {outcome.folder} are the same run with the same seeds.")
        of_cell[pair] = outcome
    rows = dict.fromkeys(row for row, _ in placed)
    names = dict.fromkeys(column for _, column in placed)
    seeds = sorted({pair for runs in placed.values() for pair in runs})
    without = {row: [column for column in names if (row, column) not in placed] for row in rows}
    whole = {
        "title": "Existing runs",
        "recipe": "config.yaml",
        "rows": rows,
        "seeds": {"training": [pair.training for pair in seeds], "partition": [pair.partition for pair in seeds]},
        "without": {row: left_out for row, left_out in without.items() if left_out},
        **({} if list(names) == [ONLY_COLUMN] else {"columns": names}),
        **content,
    }
    study = build_study(whole)
    cells = {(cell.row, cell.column): cell for cell in study.cells}
    return study, {(cells[place], pair): outcome for place, runs in placed.items() for pair, outcome in runs.items()}


def _check_run(outcome: Outcome) -> None:
    for name in ("metrics.csv", "config.yaml", "events.jsonl", "ledger.csv"):
        if not (outcome.folder / name).is_file():
            raise ValueError(f"`--from-runs {outcome.folder}` is not the folder of a run: it has no {name}.")
    if outcome.metrics.empty:
        raise ValueError(f"`--from-runs {outcome.folder}`: the run has not ended a round.")


def _row_name(config: Mapping[str, Any], configs: Iterable[Mapping[str, Any]]) -> str:
    """The method, and the options in which it differs from other runs of the same method."""
    method = config.get("model.class_path", "run")
    of_method = [other for other in configs if other.get("model.class_path", "run") == method]
    differing = [name for name in differing_options(of_method) if not name.startswith(DATA)]
    details = _name(config, [name for name in differing if not isinstance(config.get(name), dict | list | None)])
    name = str(method).rpartition(".")[2]
    return f"{name} ({details})" if details else name


def _name(config: Mapping[str, Any], differing: Iterable[str]) -> str:
    return ", ".join(f"{name.partition('.')[2]}={config[name]}" for name in differing if name in config)
