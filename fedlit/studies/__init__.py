"""Many runs that answer one question: studies with tables, figures and pages."""

from importlib.util import find_spec
from pathlib import Path


def page_after_fit(folder: Path | None) -> None:
    """Write the page of a run, unless the extra `report` is not installed.

    Args:
        folder: None of a development run, which writes nothing.
    """
    if folder is not None and find_spec("pandas") is not None:
        from fedlit.studies.pages import write_run_page  # pandas takes long to import

        write_run_page(folder)
