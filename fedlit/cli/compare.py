"""`fedlit compare`: runs a study side by side and writes its tables, figures and page."""

from argparse import Namespace
from collections.abc import Iterable
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from fedlit.cli.recipes import find_recipe
from fedlit.cli.refusal import OneLineParser, need_report, refusals, refuse

if TYPE_CHECKING:
    from fedlit.cli.study_call import StudyCall

DESCRIPTION = """\
Run a study, or compare recipes: every cell with the same seeds, side by side, and write tables, figures and a page.
Options of `fedlit fit` (--trainer..., --model..., --data...) hold for all runs."""
EXAMPLES = """\
examples:
  fedlit compare fedavg_fashion.yaml fml_fashion.yaml --seeds 3
  fedlit compare fedavg_fashion.yaml fml_fashion.yaml --seeds 3 --target 0.8 --trainer.num_rounds 5
  fedlit compare papers/fml_v2_table1.yaml --only 'MNIST*' --trainer.num_rounds 30 --dry-run
  fedlit compare study.yaml --array 3/8          the third of eight shares, as an array job would run it
  fedlit compare fedavg_fashion.yaml fedprox_fashion.yaml --sweep model.optimizer.lr=0.01,0.1 --sweep model.mu=0.1,1
  fedlit compare --from-runs lightning_logs/*    tables and page of existing runs
"""
PASSED_ON = ("--trainer", "--model", "--data")  # options of `fedlit fit`
SET_BY_STUDY = (
    "--seed_everything",
    "--data.partition_seed",
    "--data.init_args.partition_seed",
    "--trainer.default_root_dir",
)


def parser() -> OneLineParser:
    """What `fedlit compare --help` prints."""
    found = OneLineParser("fedlit compare", DESCRIPTION, epilog=EXAMPLES)
    found.add_argument("files", nargs="*", metavar="FILE", help="A study, or recipes to compare.")
    found.add_argument("--seeds", type=int, help="Number of pairs of seeds; 1 by default, or what the study says.")
    found.add_argument(
        "--metric", help="What is compared, such as acc/global_on_pooled; clients' own accuracy by default."
    )
    found.add_argument("--at", help="last, best, median_of_last_ten, rounds_to_target, bytes_to_target ...")
    found.add_argument("--target", type=float, help="Also report rounds, bytes and seconds to this value.")
    found.add_argument("--baseline", help="The row that others are compared with; the first by default.")
    found.add_argument(
        "--sweep",
        action="append",
        default=[],
        metavar="OPTION=VALUES",
        help="Values from which each row takes the best, such as model.mu=0.01,0.1,1; several options are a grid.",
    )
    found.add_argument("--tune-seeds", type=int, help="Number of pairs of seeds for selecting settings.")
    found.add_argument("--only", nargs="+", default=[], metavar="PATTERN", help="Rows and columns, such as 'F*' 'IID'.")
    found.add_argument("--array", metavar="N/M", help="Run the N-th of M shares, on a cluster.")
    found.add_argument("--jobs", type=int, help="Runs side by side; one for each core by default.")
    found.add_argument(
        "--run-timeout", type=float, metavar="SECONDS", help="A run that takes longer is stopped and has failed."
    )
    found.add_argument("--output", type=Path, help="Folder of the study; studies/NAME by default.")
    found.add_argument("--dry-run", action="store_true", help="List the runs and about how long they take.")
    found.add_argument(
        "--from-runs", nargs="+", default=[], type=Path, metavar="FOLDER", help="Folders of existing runs."
    )
    return found


def main(args: list[str]) -> None:
    """Run a study, or recipes side by side over seeds: tables, figures and a page."""
    own, overrides = split_overrides(args)
    given = parser().parse_args(own)
    need_report("fedlit compare")
    with refusals():
        _check(given, overrides)  # before seconds of imports
        code = _compare(given, overrides)
    raise SystemExit(code)


def _compare(given: Namespace, overrides: list[str]) -> int:
    from fedlit.cli.app import notices_in_one_line
    from fedlit.cli.study_call import StudyCall

    with notices_in_one_line():
        return _called(StudyCall(given, overrides), given)


def _called(call: "StudyCall", given: Namespace) -> int:
    if given.dry_run:
        call.print_plan()
        return 0
    return call.run()


def split_overrides(args: Iterable[str]) -> tuple[list[str], list[str]]:
    """The command's own arguments, and those that it passes on to every run.

    Example:
        >>> split_overrides(["a.yaml", "--trainer.num_rounds", "3", "--seeds", "2", "--model.alpha=0.5"])
        (['a.yaml', '--seeds', '2'], ['--trainer.num_rounds=3', '--model.alpha=0.5'])
    """
    own: list[str] = []
    overrides: list[str] = []
    left = list(args)
    while left:
        arg = left.pop(0)
        if not arg.startswith((*PASSED_ON, "--seed_everything")):
            own.append(arg)
        elif "=" in arg:
            overrides.append(arg)
        elif not left:
            refuse(f"`{arg}` needs a value.")
        else:
            values = [left[0], *takewhile(_is_value, left[1:])]
            if len(values) > 1:
                swept = f"{arg.removeprefix('--')}={','.join(values)}"
                refuse(f"`{arg}` takes one value; to compare several, give `--sweep {swept}`.")
            overrides.append(f"{arg}={left.pop(0)}")
    return own, overrides


def _is_value(arg: str) -> bool:
    """Whether an argument is neither an option nor a recipe."""
    if arg.startswith("--") or arg.endswith((".yaml", ".yml")):
        return False
    try:
        find_recipe(arg)
    except ValueError:
        return True
    return False


def _check(given: Namespace, overrides: list[str]) -> None:
    for override in overrides:
        name = override.partition("=")[0]
        if name in SET_BY_STUDY:
            raise ValueError(f"`{name}` is set by the study; see `--seeds` and `--output`.")
    if not given.files and not given.from_runs:
        raise ValueError("give a study, recipes to compare, or `--from-runs`; see `fedlit compare --help`.")
    if given.files and given.from_runs:
        raise ValueError("`--from-runs` takes existing runs; it excludes recipes and studies.")
    if given.from_runs and overrides:
        raise ValueError(f"`{overrides[0].partition('=')[0]}` cannot change existing runs.")
    if given.from_runs and given.run_timeout is not None:
        raise ValueError("`--run-timeout` is for new runs; it excludes `--from-runs`.")
    if given.run_timeout is not None and not given.run_timeout > 0:
        raise ValueError(f"`--run-timeout` must be above 0, got {given.run_timeout:g}.")
    if given.from_runs and given.sweep:
        raise ValueError("`--sweep` is for new runs; it excludes `--from-runs`.")
    for name in ("seeds", "jobs", "tune_seeds"):
        value = getattr(given, name)
        if value is not None and value < 1:
            raise ValueError(f"`--{name.replace('_', '-')}` must be at least 1, got {value}.")
    for file in given.files:
        find_recipe(file)
