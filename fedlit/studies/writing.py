"""What a study writes into its folder: tables, figures and a page, each whole at every moment."""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedlit.records.files import replacing, write_whole
from fedlit.records.run_folder import LOCK, open_lock
from fedlit.studies.figures import FIGURES, draw_all, save
from fedlit.studies.latex import latex_table
from fedlit.studies.page import study_page
from fedlit.studies.results import Results
from fedlit.studies.tables import markdown_tables

KINDS = ("png", "pdf")


@contextmanager
def study_lock(output: Path) -> Iterator[None]:
    """Wait until no other call gathers and writes this study: the last to write has then seen the most runs."""
    output.mkdir(parents=True, exist_ok=True)
    with open_lock(output / LOCK) as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def write_all(results: Results, output: Path, command: str) -> None:
    """All that is made of a study; to be called within `study_lock`, in which the runs were gathered.

    Args:
        results: What is known of its runs.
        output: The study's folder.
        command: As it was typed.
    """
    for name, frame in (("runs.csv", results.runs), ("summary.csv", results.summary)):
        write_whole(output / name, frame.to_csv(index=False))
    write_whole(output / "table.md", markdown_tables(results))
    write_whole(output / "table.tex", latex_table(results))
    drawn = dict(draw_all(results))
    for name in FIGURES:
        for kind in KINDS:
            if name not in drawn:  # of an earlier call with a target
                (output / f"{name}.{kind}").unlink(missing_ok=True)
    for name, figure in drawn.items():
        for kind in KINDS:
            with replacing(output / f"{name}.{kind}") as temporary:
                save(figure, temporary, kind)
    write_whole(output / "report.html", study_page(results, command))
