"""Notices on the command line: one line each, once, by the first process."""

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from lightning.pytorch.utilities import rank_zero_only

from fedlit.engine import liveness
from fedlit.notices import Notice


@contextmanager
def notices_in_one_line() -> Iterator[None]:
    """Within, a notice is a line without file and number; warnings of others look as ever."""
    said: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, Notice):
            if _is_ours_to_show(warnings.formatwarning(message, category, filename, lineno, line)):
                as_ever(message, category, filename, lineno, file, line)
        elif str(message) not in said:
            said.add(str(message))
            _say(str(message))

    with warnings.catch_warnings():
        as_ever = warnings.showwarning
        warnings.showwarning = show
        yield


def _is_ours_to_show(text: str) -> bool:
    """Of the first process; before all have met, the others can but repeat what the first has said."""
    alive = liveness.current()
    if alive is None:
        return getattr(rank_zero_only, "rank", 0) == 0
    return alive.is_first(f"warned {text}")


@rank_zero_only
def _say(notice: str) -> None:
    sys.stderr.write(f"fedlit: note: {notice}\n")
