"""What differs between configurations: of a study's cells, and of existing runs, which become a study by it."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from fedlit.studies.options import flat, flat_options
from fedlit.studies.outcome import Outcome
from fedlit.studies.results import Results
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


def differences(results: Results, between: Literal["row", "column"]) -> pd.DataFrame:
    """Options that differ between rows of a column, or between columns of a row: what each row or column has."""
    cells = [cell for cell in results.study.cells if results.outcomes_of(cell)]
    configs = [flat(results.outcomes_of(cell)[0][1].config) for cell in cells]
    options = sorted({name for config in configs for name in config if name not in NOT_COMPARED})
    shown = pd.DataFrame([{name: str(config.get(name, ABSENT)) for name in options} for config in configs])
    groups = [cell.column if between == "row" else cell.row for cell in cells]
    owners = [cell.row if between == "row" else cell.column for cell in cells]
    differ = shown.groupby(groups).nunique().gt(1).any()
    values = shown.loc[:, differ].groupby(owners, sort=False)
    return values.agg(lambda its: " / ".join(dict.fromkeys(its))).T  # several where they depend on the other, too


def warnings(results: Results) -> list[str]:
    """What else than the method differs between rows: their data, or how long they train if no row asks for it."""
    lines = []
    table = differences(results, "row")
    of_data = [name for name in table.index if name.startswith(DATA)]
    if of_data:
        lines.append(f"The rows differ in their data, so methods alone are not compared: {', '.join(of_data)}.")
    asked = {option for cell in results.study.cells for given in cell.options[2:] for option, _ in flat_options(given)}
    for option in EFFORT:
        if option in table.index and option not in asked:
            values = ", ".join(f"{row} {value}" for row, value in table.loc[option].items())
            lines.append(f"The rows differ in how long they train: {option} is {values}; set it for all.")
    return lines


# --- existing runs


def of_runs(folders: Iterable[Path], content: Mapping[str, Any]) -> tuple[Study, dict[tuple[Cell, SeedPair], Outcome]]:
    """A study of existing runs, with further keys: options of the data that differ make columns, others rows."""
    outcomes = [Outcome(folder) for folder in folders]
    for outcome in outcomes:
        for name in ("metrics.csv", "config.yaml", "events.jsonl", "ledger.csv"):
            if not (outcome.folder / name).is_file():
                raise ValueError(f"`--from-runs {outcome.folder}` is not the folder of a run: it has no {name}.")
        if outcome.metrics.empty:
            raise ValueError(f"`--from-runs {outcome.folder}`: the run has not ended a round.")
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


def _row_name(config: Mapping[str, Any], configs: Iterable[Mapping[str, Any]]) -> str:
    """The method, and the options in which it differs from other runs of the same method."""
    method = config.get("model.class_path", "run")
    differing = differing_options(other for other in configs if other.get("model.class_path", "run") == method)
    details = _name(config, [name for name in differing if not name.startswith(DATA)])
    return str(method).rpartition(".")[2] + (f" ({details})" if details else "")


def _name(config: Mapping[str, Any], differing: Iterable[str]) -> str:
    return ", ".join(f"{name.partition('.')[2]}={config[name]}" for name in differing if name in config)
