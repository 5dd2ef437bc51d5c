"""One call of `fedlit compare`: from what was typed to a folder with tables, figures and a page."""

import io
import json
import os
import sys
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedlit.cli.app import FederatedCLI
from fedlit.cli.recipes import find_recipe, with_recipes_found
from fedlit.records.files import NOT_WRITTEN, is_full, write_whole
from fedlit.records.progress import duration
from fedlit.studies.config_diff import of_runs
from fedlit.studies.execution import Execution, Launcher, seconds_left, start_method
from fedlit.studies.options import check_keys, flat_options, read_mapping
from fedlit.studies.outcome import Outcome
from fedlit.studies.pages import study_lock, write_all
from fedlit.studies.results import Results, results_of
from fedlit.studies.runs import Run, in_order, plan_runs, share, slug
from fedlit.studies.study import KEYS, Cell, SeedPair, Study, build_study, chosen
from fedlit.studies.sweep import Selection, Setting, describe, not_swept, settings_of, study_of_settings
from fedlit.studies.tables import terminal_table

MEASURED = ("metric", "at", "target")
SETTINGS = "settings"  # the folder of runs by which settings are selected
Planned = Mapping[Cell, list[Run]]


def cores() -> int:
    """How many this process may use."""
    if hasattr(os, "sched_getaffinity"):  # not on every system
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class StudyCall:
    """What `fedlit compare` was asked for.

    Args:
        given: The command's own options.
        overrides: Options that hold for all runs.
    """

    def __init__(self, given: Namespace, overrides: list[str]) -> None:
        self.given = given
        self.overrides = overrides
        self.jobs = given.jobs or cores()
        self.failures: dict[Run, str] = {}
        self.stopped_by: int | None = None
        self.is_disk_full = False
        self.selection: Selection | None = None
        self.existing: dict[tuple[Cell, SeedPair], Outcome] = {}
        self.configs: dict[str, dict[str, Any]] = {}
        if given.from_runs:
            whole, self.existing = of_runs(given.from_runs, self._given_options())
        else:
            whole = self._read()
        self.study = chosen(whole, given.only)
        self._check_swept()

    def run(self) -> int:
        """Make the runs that are left, and write what is known; the exit code."""
        if self.given.from_runs:
            for outcome in self.existing.values():
                if outcome.half_lines:
                    print(f"fedlit: note: {outcome.half_lines}", file=sys.stderr)
            with study_lock(self.output):
                self._write(results_of(self.study, self.existing, {}))
            return 0
        try:
            if self.study.sweep:
                self._tune()
            planned = self._plan()
            if self.stopped_by is None and not self._waits_for_settings:
                self._make(planned)
            with study_lock(self.output):  # the last to write has seen the most runs
                self._write(self._gather(self.study, planned))
        finally:
            for run, reason in self.failures.items():
                print(f"fedlit: failed: {run}: {reason}", file=sys.stderr)
        if self.stopped_by is not None:
            print("Stopped; the same command goes on where it was.", file=sys.stderr)
            return 128 + self.stopped_by
        if self.is_disk_full:
            return NOT_WRITTEN
        return 1 if self.failures else 0

    def print_plan(self) -> None:
        """The runs, what is known of each, and about how long they take."""
        plans = []
        if self.study.sweep:
            settings, trials = self._settings()
            plans.append(trials)
            self._select(settings, trials)
        plans.append(self._plan())
        runs = [run for planned in plans for run in share(in_order(planned), self.given.array)]
        for run in runs:
            run.check_config()
        for run in runs:
            print(f"{run.status:5}  {run}")
        done = sum(run.status == "done" for run in runs)
        left = seconds_left(runs, self.jobs)
        time_left = "no estimate of the time before the first is done"
        if left is not None:
            time_left = f"about {duration(left)} left with {self.jobs} side by side"
        print(f"{len(runs)} runs, {done} of them done; {time_left}.")
        if self.selection is not None and self.selection.unsettled:
            later = len(self.selection.unsettled) * len(self.study.seeds)
            print(f"Up to {later} more follow, with the settings that are chosen.")

    @property
    def output(self) -> Path:
        """The study's folder."""
        if self.given.output is not None:
            return self.given.output
        return Path("studies") / self._name

    def _make(self, planned: Planned) -> None:
        """Make the runs of this call's share that are left."""
        runs = share(in_order(planned), self.given.array)
        for run in runs:
            run.check_config()
        execution = Execution(
            runs,
            self.jobs,
            waits=self.given.array is None,
            launcher=Launcher(start_method()),
            run_timeout=self.study.run_timeout,
        )
        execution.run()
        self.failures |= execution.failures
        self.stopped_by = execution.stopped_by
        self.is_disk_full |= execution.is_disk_full

    def _plan(self) -> dict[Cell, list[Run]]:
        """The runs of every cell, with its settings."""
        unsettled = self.selection.unsettled if self.selection is not None else set()
        cells = tuple(cell for cell in self.study.cells if cell not in unsettled)
        return plan_runs(replace(self.study, cells=cells), self.output, self._config_of)

    def _config_of(self, cell: Cell) -> dict[str, Any]:
        """Every option of a cell; cells may differ in what they measure alone."""
        key = repr((cell.recipe, cell.options))
        if key not in self.configs:
            self.configs[key] = resolve(cell, self.overrides)
        return self.configs[key]

    # --- sweeps

    def _settings(self) -> tuple[list[Setting], dict[Cell, list[Run]]]:
        """Every setting, and the runs by which one is selected for each cell."""
        settings = settings_of(self.study, self._config_of)
        for line in not_swept(self.study, settings):
            print(f"fedlit: note: {line}", file=sys.stderr)
        study = study_of_settings(self.study, settings)
        return settings, plan_runs(study, self.output / SETTINGS, self._config_of)

    def _tune(self) -> None:
        """Run every setting, and go on with the best of each cell."""
        settings, planned = self._settings()
        self._make(planned)
        self._select(settings, planned)
        assert self.selection is not None
        if self._waits_for_settings:
            left = len(self.selection.waiting)
            print(f"The settings of {left} cells are not all run yet: call again once they are.", file=sys.stderr)
        for cell, setting in self.selection.chosen.items():
            print(f"{cell}: chosen {describe(setting.values)}")
        for line in self.selection.edges:
            print(f"fedlit: warning: {line}", file=sys.stderr)
        with study_lock(self.output):
            write_whole(self.output / "settings.csv", self.selection.frame.to_csv(index=False))

    def _select(self, settings: list[Setting], planned: Planned) -> None:
        results = self._gather(study_of_settings(self.study, settings), planned)
        self.selection = Selection(self.study, settings, results)
        self.study = self.selection.settled

    @property
    def _waits_for_settings(self) -> bool:
        return self.selection is not None and bool(self.selection.waiting)

    def _check_swept(self) -> None:
        swept = {option.replace(".init_args", "") for option in self.study.sweep}
        for override in self.overrides:
            name = override.partition("=")[0]
            if name.removeprefix("--").replace(".init_args", "") in swept:
                raise ValueError(f"`{name}` is swept; give its values by `sweep` or one for all, not both.")

    # --- what was asked

    @property
    def _name(self) -> str:
        if self.given.from_runs:
            return "runs"
        stems = [Path(name).stem for name in self.given.files]
        if len(stems) <= 2:
            return slug("_and_".join(stems))
        return slug(f"{stems[0]}_and_{len(stems) - 1}_others")

    def _read(self) -> Study:
        """The study of a file, or of recipes."""
        files = [find_recipe(name) for name in self.given.files]
        contents = [read_mapping(Path(file)) for file in files]
        given = self._given_options()
        if not any("rows" in content for content in contents):
            return build_study({**of_recipes(self.given.files), **given})
        if len(files) > 1:
            raise ValueError("give one study, or recipes to compare; not both.")
        path = Path(files[0])
        check_keys(contents[0], KEYS, str(path))
        for name in ("measure", "sweep"):
            given[name] = {**(contents[0].get(name) or {}), **given.pop(name, {})}
        try:
            return build_study({**contents[0], **given}, path)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _given_options(self) -> dict[str, Any]:
        """Keys of the study that the command's options set."""
        found: dict[str, Any] = {}
        for name in ("seeds", "baseline", "run_timeout", "tune_seeds"):
            if getattr(self.given, name) is not None:
                found[name] = getattr(self.given, name)
        measure = {name: getattr(self.given, name) for name in MEASURED if getattr(self.given, name) is not None}
        if measure:
            found["measure"] = measure
        if self.given.sweep:
            found["sweep"] = read_sweep(self.given.sweep)
        return found

    # --- what came of it

    def _gather(self, study: Study, planned: Planned) -> Results:
        """Whatever is done by now, by whichever call; a run whose records cannot be read has failed."""
        outcomes = {}
        failures = {}
        for cell, runs in planned.items():
            for run in runs:
                folder = run.folder
                if folder is not None and run.has(cell.measure):
                    outcome = Outcome(folder)
                    try:
                        outcome.check()
                        outcomes[cell, run.seeds] = outcome
                    except (ValueError, OSError) as error:
                        self.failures[run] = str(error)
                if run in self.failures:
                    failures[cell, run.seeds] = self.failures[run]
        return results_of(study, outcomes, failures)

    def _write(self, results: Results) -> None:
        if not results.outcomes:
            print("No run is done yet: there is nothing to compare.", file=sys.stderr)
            return
        command = " ".join(["fedlit", *sys.argv[1:]])
        try:
            write_all(results, self.output, command, self.selection)
        except OSError as error:
            if not is_full(error):
                raise
            raise OSError(error.errno, error.strerror, str(self.output)) from error
        print(terminal_table(results))
        print(f"\nLook at {self.output}/report.html")


def of_recipes(recipes: Sequence[str]) -> dict[str, Any]:
    """The content of a study that has a row for each recipe.

    Example:
        >>> of_recipes(["fedavg_fashion.yaml", "mine/fml.yaml"])["rows"]
        {'fedavg_fashion': {'recipe': 'fedavg_fashion.yaml'}, 'fml': {'recipe': 'mine/fml.yaml'}}
    """
    stems = [Path(recipe).stem for recipe in recipes]
    rows: dict[str, Any] = {}
    for recipe, stem in zip(recipes, stems, strict=True):
        name = stem if stems.count(stem) == 1 else str(Path(recipe).with_suffix(""))
        if name in rows:
            raise ValueError(f"{recipe} is given twice.")
        rows[name] = {"recipe": recipe}
    return {"title": " / ".join(rows), "rows": rows}


def read_sweep(given: Iterable[str]) -> dict[str, list[Any]]:
    """What `--sweep` was given, as a study's file has it.

    Example:
        >>> read_sweep(["model.mu=0.01,0.1", "data.partition=IID,Dirichlet"])
        {'model.mu': [0.01, 0.1], 'data.partition': ['IID', 'Dirichlet']}
    """
    found = {}
    for text in given:
        option, _, values = text.removeprefix("--").partition("=")
        try:
            found[option] = yaml.safe_load(f"[{values}]")
        except yaml.YAMLError:
            found[option] = []
        if not option or len(found[option]) < 2:
            raise ValueError(f"`--sweep` must be an option and its values, such as model.mu=0.01,0.1,1, got {text}.")
    return found


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options by name, dotted or nested as in a recipe, as arguments of a command.

    Example:
        >>> as_arguments({"model.alpha": 0.5, "trainer": {"num_rounds": 3, "fast": True}})
        ['--model.alpha=0.5', '--trainer.num_rounds=3', '--trainer.fast=true']
        >>> as_arguments({"model": {"class_path": "FedAvg", "init_args": {"weighting": "uniform"}}})
        ['--model={"class_path": "FedAvg", "init_args": {"weighting": "uniform"}}']
    """
    found = []
    for name, value in flat_options(options):
        found.append(f"--{name}={_typed(value)}")
    return found


def _typed(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


def resolve(cell: Cell, overrides: list[str]) -> dict[str, Any]:
    """Every option of a cell; its model and data are built, so that errors are found before any run.

    Args:
        cell: Of a study.
        overrides: Arguments of the command that hold for all cells.
    """
    arguments = ["fit", "--config", cell.recipe]
    for options in cell.options:
        arguments += as_arguments(options)
    try:
        with typed([*arguments, *overrides]):
            cli = FederatedCLI()
    except (ValueError, TypeError, RuntimeError, OSError, MisconfigurationException) as error:
        raise ValueError(f"{cell}: {_as_written(str(error), overrides)}") from error
    config = cli.config["fit"].clone()
    config.pop("config", None)
    dumped = cli._parser("fit").dump(config, skip_unset=False)
    return yaml.safe_load(dumped)


def _as_written(message: str, overrides: list[str]) -> str:
    """Options of a study stand there without the dashes of a command line."""
    if any(override.partition("=")[0] in message for override in overrides):
        return message
    return message.replace("`--config ", "`recipe: ").replace("`--", "`")


@contextmanager
def typed(arguments: list[str]) -> Iterator[None]:
    """As if a user had typed the arguments; a refusal is an error instead of the end."""
    before = sys.argv[1:]
    printed = io.StringIO()
    try:
        sys.argv[1:] = with_recipes_found(arguments)
        with redirect_stderr(printed):
            yield
    except SystemExit as end:
        lines = printed.getvalue().strip().splitlines() or ["refused"]
        raise ValueError(lines[-1].removeprefix("fedlit: error: ")) from end
    finally:
        sys.argv[1:] = before
