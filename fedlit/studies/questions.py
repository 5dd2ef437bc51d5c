"""Studies without a file: recipes side by side, and existing runs."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from fedlit.studies.config_diff import differing_options
from fedlit.studies.options import flat
from fedlit.studies.outcome import Outcome
from fedlit.studies.study import ONLY_COLUMN, Cell, SeedPair, Study, build_study


def of_recipes(recipes: Iterable[str]) -> dict[str, Any]:
    """The content of a study that has a row for each recipe.

    Example:
        >>> of_recipes(["fedavg_fashion.yaml", "mine/fml.yaml"])["rows"]
        {'fedavg_fashion': {'recipe': 'fedavg_fashion.yaml'}, 'fml': {'recipe': 'mine/fml.yaml'}}
    """
    recipes = list(recipes)
    stems = [Path(recipe).stem for recipe in recipes]
    rows: dict[str, Any] = {}
    for recipe, stem in zip(recipes, stems, strict=True):
        name = stem
        if stems.count(stem) > 1:
            name = str(Path(recipe).with_suffix(""))
        if name in rows:
            raise ValueError(f"{recipe} is given twice.")
        rows[name] = {"recipe": recipe}
    return {"title": " / ".join(rows), "rows": rows}


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
    differing = differing_options(configs)
    columns = [name for name in differing if name.startswith("data.")]
    placed: dict[tuple[str, str], dict[SeedPair, Outcome]] = defaultdict(dict)
    for outcome, config in zip(outcomes, configs, strict=True):
        place = (_row_name(config, configs), _name(config, columns))
        seeds = SeedPair(config.get("seed_everything", 0), config.get("data.partition_seed", 0))
        if seeds in placed[place]:
            raise ValueError(
                f"{placed[place][seeds].folder} and {outcome.folder} are the same run with the same seeds."
            )
        placed[place][seeds] = outcome
    return _study_of(placed, content)


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
    differing = [name for name in differing_options(of_method) if not name.startswith("data.")]
    details = _name(config, [name for name in differing if _is_short(config.get(name))])
    name = str(method).rpartition(".")[2]
    return f"{name} ({details})" if details else name


def _name(config: Mapping[str, Any], differing: list[str]) -> str:
    words = [f"{name.partition('.')[2]}={config[name]}" for name in differing if name in config]
    return ", ".join(words)


def _is_short(value: Any) -> bool:
    return value is not None and not isinstance(value, dict | list)


def _study_of(
    placed: Mapping[tuple[str, str], Mapping[SeedPair, Outcome]], content: Mapping[str, Any]
) -> tuple[Study, dict[tuple[Cell, SeedPair], Outcome]]:
    rows = list(dict.fromkeys(row for row, _ in placed))
    columns = list(dict.fromkeys(column for _, column in placed))
    seeds = sorted({seeds for runs in placed.values() for seeds in runs})
    without = {row: [column for column in columns if (row, column) not in placed] for row in rows}
    whole = {
        "title": "Runs that were there",
        "recipe": "config.yaml",
        "rows": dict.fromkeys(rows),
        "seeds": {"training": [pair.training for pair in seeds], "partition": [pair.partition for pair in seeds]},
        "without": {row: left_out for row, left_out in without.items() if left_out},
        **content,
    }
    if columns != [ONLY_COLUMN]:
        whole["columns"] = dict.fromkeys(columns)
    study = build_study(whole)
    outcomes = {}
    for cell in study.cells:
        for pair, outcome in placed[cell.row, cell.column].items():
            outcomes[cell, pair] = outcome
    return study, outcomes
