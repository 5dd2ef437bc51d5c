"""`fedlit report`: the page of a run."""

import sys
from pathlib import Path

from fedlit.cli.refusal import OneLineParser, need_report, refusals
from fedlit.records.run_folder import newest_run

DESCRIPTION = """\
Write the page of a run: curves of every client, who holds what, what was sent, events, configuration, environment.
It opens without a network; `fedlit fit` writes it, too, unless `trainer.report` is false."""
EXAMPLES = """\
examples:
  fedlit report lightning_logs/version_3            writes lightning_logs/version_3/report.html
  fedlit report .                                   of the newest run in this folder
  fedlit report lightning_logs/*                    a page for each
  fedlit report lightning_logs/version_3 --output page.html
"""


def main(args: list[str]) -> None:
    """Write the page of a run: curves, who holds what, what was sent, events, configuration."""
    parser = OneLineParser("fedlit report", DESCRIPTION, epilog=EXAMPLES)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="The folder of a run.")
    parser.add_argument("--output", type=Path, metavar="FILE", help="Where to write; report.html in the run's folder.")
    given = parser.parse_args(args)
    need_report("fedlit report")
    with refusals():
        _check_output(given.output, given.runs)
        folders = [_run(path) for path in given.runs]
        from fedlit.studies.outcome import Outcome
        from fedlit.studies.pages import write_run_page

        for folder in folders:
            print(write_run_page(folder, given.output))
            half_lines = Outcome(folder).half_lines
            if half_lines:
                print(f"fedlit: note: {half_lines}", file=sys.stderr)


def _check_output(output: Path | None, runs: list[Path]) -> None:
    if output is None:
        return
    if len(runs) > 1:
        raise ValueError(f"`--output` takes the page of one run, got {len(runs)} runs.")
    if output.is_dir():
        raise ValueError(f"`--output {output}` must be a file, and it is a folder.")
    if not output.parent.is_dir():
        raise ValueError(f"`--output {output}`: there is no folder {output.parent}.")


def _run(path: Path) -> Path:
    """The folder of a run, or of the newest one in it."""
    from fedlit.studies.pages import NEEDED

    folder = path
    if not (path / NEEDED[0]).is_file():
        folder = newest_run(path) or path
    if (path / "summary.csv").is_file():
        raise ValueError(f"{path} is the folder of a study: `fedlit compare` with what made it writes its page again.")
    for name in NEEDED:
        if not (folder / name).is_file():
            raise ValueError(f"{path} is not the folder of a run: it has no {name}.")
    return folder
