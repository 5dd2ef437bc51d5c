"""Takes what a study found into docs/papers/runs: its runs.csv as it is, and what it was run on."""

import json
from pathlib import Path

import pandas as pd

from fedlit.studies.outcome import Outcome
from fedlit.studies.whole_files import write_whole


def take(study: Path, target: Path) -> None:
    """Copy runs.csv and write about.json beside it.

    Args:
        study: The folder that `fedlit compare` wrote.
        target: Below docs/papers/runs.
    """
    text = (study / "runs.csv").read_text(encoding="utf-8")
    runs = pd.read_csv(study / "runs.csv")
    done = runs[runs["status"] == "done"]
    folders = sorted(done["folder"].unique())  # cells may share their runs
    outcomes = [Outcome(study.parent.parent / folder) for folder in folders]
    environments = [outcome.environment for outcome in outcomes]
    about = {
        "done": len(folders),
        "failed": int((runs["status"] == "failed").sum()),
        "seconds": round(sum(outcome.total_seconds for outcome in outcomes), 1),
    }
    for name in ("cpu", "torch", "python", "fedlit"):
        about[name] = ", ".join(sorted({str(environment[name]) for environment in environments}))
    target.mkdir(parents=True, exist_ok=True)
    write_whole(target / "runs.csv", text)
    write_whole(target / "about.json", json.dumps(about, indent=2) + "\n")
