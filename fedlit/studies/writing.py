"""What a study writes into its folder."""

from pathlib import Path

from fedlit.studies.results import Results


def write_all(results: Results, output: Path, command: str) -> None:
    """runs.csv and summary.csv, each whole at every moment."""
    output.mkdir(parents=True, exist_ok=True)
    for name, frame in (("runs.csv", results.runs), ("summary.csv", results.summary)):
        temporary = output / f".{name}.tmp"
        frame.to_csv(temporary, index=False)
        temporary.replace(output / name)
