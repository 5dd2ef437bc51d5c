"""One call of `fedlit compare`: from what was typed to a folder with tables, figures and a page."""

import io
import os
import sys
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedlit.cli.app import FederatedCLI
from fedlit.cli.recipes import find_recipe, with_recipes_found
from fedlit.records.files import NOT_WRITTEN, is_full
from fedlit.records.progress import duration
from fedlit.studies.config_diff import inherited_arguments, of_runs
from fedlit.studies.execution import Execution, Launcher, StudyProgress, start_method
from fedlit.studies.options import as_arguments, check_keys, read_mapping
from fedlit.studies.outcome import Outcome
from fedlit.studies.pages import study_lock, write_all
from fedlit.studies.results import results_of
from fedlit.studies.runs import Run, in_order, plan_runs, share, slug
from fedlit.studies.study import KEYS, Cell, Study, build_study, chosen, of_recipes
from fedlit.studies.tables import terminal_table

MEASURED = ("metric", "at", "target")


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
        if given.from_runs:
            whole, self.outcomes = of_runs(given.from_runs, self._given_options())
        else:
            whole = self._read()
            self.outcomes = {}
        self.study = chosen(whole, given.only)

    def run(self) -> int:
        """Make the runs that are left, and write what is known; the exit code."""
        if self.given.from_runs:
            for outcome in self.outcomes.values():
                if outcome.half_lines:
                    print(f"fedlit: note: {outcome.half_lines}", file=sys.stderr)
            with study_lock(self.output):
                self._write()
            return 0
        runs = share(in_order(self.planned), self.given.array)
        for run in runs:
            run.check_config()
        progress = StudyProgress(runs, self.jobs)
        execution = Execution(
            runs,
            self.jobs,
            progress,
            waits=self.given.array is None,
            launcher=Launcher(start_method()),
            run_timeout=self.study.run_timeout,
        )
        execution.run()
        self.failures = execution.failures
        try:
            with study_lock(self.output):  # the last to write has seen the most runs
                self._gather()
                self._write()
        finally:
            for run, reason in self.failures.items():
                print(f"fedlit: failed: {run}: {reason}", file=sys.stderr)
        if execution.stopped_by is not None:
            print("Stopped; the same command goes on where it was.", file=sys.stderr)
            return 128 + execution.stopped_by
        if execution.is_disk_full:
            return NOT_WRITTEN
        return 1 if self.failures else 0

    def print_plan(self) -> None:
        """The runs, what is known of each, and about how long they take."""
        runs = share(in_order(self.planned), self.given.array)
        for run in runs:
            run.check_config()
        for run in runs:
            print(f"{run.status:5}  {run}")
        progress = StudyProgress(runs, self.jobs, enabled=False)
        progress.finished = [run for run in runs if run.status == "done"]
        left = progress.left()
        time_left = "no estimate of the time before the first is done"
        if left is not None:
            time_left = f"about {duration(left)} left with {self.jobs} side by side"
        print(f"{len(runs)} runs, {len(progress.finished)} of them done; {time_left}.")

    @property
    def output(self) -> Path:
        """The study's folder."""
        if self.given.output is not None:
            return self.given.output
        return Path("studies") / self._name

    @cached_property
    def planned(self) -> dict[Cell, list[Run]]:
        """The runs of every cell; a notice says where a column does not mean the same for all rows."""
        planned = plan_runs(self.study, self.output, lambda cell: resolve(cell, self.overrides))
        for line in inherited_arguments(planned):
            print(f"fedlit: note: {line}", file=sys.stderr)
        return planned

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
        are_studies = ["rows" in content for content in contents]
        if not any(are_studies):
            return build_study({**of_recipes(self.given.files), **self._given_options()})
        if len(files) > 1:
            raise ValueError("give one study, or recipes to compare; not both.")
        path = Path(files[0])
        check_keys(contents[0], KEYS, str(path))
        given = self._given_options()
        measure = {**(contents[0].get("measure") or {}), **given.pop("measure", {})}
        try:
            return build_study({**contents[0], **given, "measure": measure}, path)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    def _given_options(self) -> dict[str, Any]:
        """Keys of the study that the command's options set."""
        found: dict[str, Any] = {}
        for name in ("seeds", "baseline", "run_timeout"):
            if getattr(self.given, name) is not None:
                found[name] = getattr(self.given, name)
        measure = {name: getattr(self.given, name) for name in MEASURED if getattr(self.given, name) is not None}
        if measure:
            found["measure"] = measure
        return found

    def _gather(self) -> None:
        """Whatever is done by now, by whichever call; a run whose records cannot be read has failed."""
        for cell, runs in self.planned.items():
            for run in runs:
                folder = run.folder
                if folder is None or not run.has(cell.measure):
                    continue
                outcome = Outcome(folder)
                try:
                    outcome.check()
                except (ValueError, OSError) as error:
                    self.failures[run] = str(error)
                else:
                    self.outcomes[cell, run.seeds] = outcome

    def _write(self) -> None:
        failures = {}
        for cell, runs in ({} if self.given.from_runs else self.planned).items():
            for run in runs:
                if run in self.failures:
                    failures[cell, run.seeds] = self.failures[run]
        results = results_of(self.study, self.outcomes, failures)
        command = " ".join(["fedlit", *sys.argv[1:]])
        if not self.outcomes:
            print("No run is done yet: there is nothing to compare.", file=sys.stderr)
            return
        try:
            write_all(results, self.output, command)
        except OSError as error:
            if not is_full(error):
                raise
            raise OSError(error.errno, error.strerror, str(self.output)) from error
        print(terminal_table(results))
        print(f"\nLook at {self.output}/report.html")


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
