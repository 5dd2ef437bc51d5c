"""The page that a fit leaves in its folder; where the extra `report` is not installed, there is none."""

from importlib.util import find_spec
from pathlib import Path


def page_after_fit(folder: Path | None, wanted: bool) -> None:
    """Write the page of a run, if it is wanted and can be made.

    Args:
        folder: None of a development run, which writes nothing.
        wanted: Whether this process is to write it.
    """
    if folder is None or not wanted or find_spec("pandas") is None:
        return
    from fedlit.studies.run_page import write_run_page  # pandas takes long to import

    write_run_page(folder)
