"""Takes what a study found into docs/papers/runs: its runs.csv, and for each run what it was made on.

A study may be run in several sittings, on several machines: what was taken before stays until it is run again.
"""

from collections.abc import Hashable, Mapping
from pathlib import Path

import pandas as pd

from fedlit.records.files import write_whole
from fedlit.studies.outcome import Outcome

RUN = ["row", "column", "training_seed", "partition_seed"]
MADE_ON = ["cpu", "torch", "python", "fedlit"]


def take(study: Path, target: Path) -> None:
    """Write the runs of a study's folder into the target's runs.csv.

    Args:
        study: The folder that `fedlit compare` wrote.
        target: Below docs/papers/runs.
    """
    runs = pd.read_csv(study / "runs.csv", dtype=str, keep_default_na=False)  # numbers as they were written
    for name in MADE_ON:
        runs[name] = ""
    for folder in runs.loc[runs["status"] == "done", "folder"].unique():  # cells may share their runs
        place = _place(study, folder)
        environment = Outcome(place).environment
        lines = runs["folder"] == folder
        runs.loc[lines, MADE_ON] = [str(environment[name]) for name in MADE_ON]
        # As from the folder in which a study is run by its command, wherever this one lies.
        runs.loc[lines, "folder"] = str(Path("studies") / target.name / place.relative_to(study))
    path = target / "runs.csv"
    if path.is_file():
        runs = merged(pd.read_csv(path, dtype=str, keep_default_na=False), runs)
    target.mkdir(parents=True, exist_ok=True)
    write_whole(path, runs.to_csv(index=False, lineterminator="\n"))


def _place(study: Path, folder: str) -> Path:
    """Where a run lies, however the study's folder was called by who ran it."""
    parts = Path(folder).parts
    for start, part in enumerate(parts):
        place = study.joinpath(*parts[start:])
        if part == "runs" and place.is_dir():
            return place
    raise ValueError(f"{study} has no run {folder}.")


def merged(before: pd.DataFrame, now: pd.DataFrame) -> pd.DataFrame:
    """All runs of both: as of now, and as of before where they were done then and are not now, or not asked for."""
    lines = {_run(line): line for line in now.to_dict("records")}
    for line in before.to_dict("records"):
        again = lines.get(_run(line))
        was_done = line["status"] == "done"
        if again is None or (was_done and again["status"] != "done"):  # who has failed stays in the table
            lines[_run(line)] = line
    return pd.DataFrame([*lines.values()], columns=now.columns)


def _run(line: Mapping[Hashable, str]) -> tuple[str, ...]:
    return tuple(line[name] for name in RUN)
