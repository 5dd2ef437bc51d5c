"""A run whose records cannot be written any more: there is no room, or its folder is gone."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOT_WRITTEN = 4  # exit code of a command that could not write: the disk is full, or the run's folder gone
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class NotWritten(OSError):
    """What a run should leave cannot be written; what it left before is whole."""


def is_full(error: BaseException) -> bool:
    """Whether there was no room left: on the disk, in a quota, or in the size that a file may have."""
    return isinstance(error, OSError) and error.errno in FULL


@contextmanager
def told_if_unwritable(folder: Path | None) -> Iterator[None]:
    """Within, an error that is the disk's and not the program's is told as such, and how to go on.

    Args:
        folder: Of the run; None writes nothing.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, NotWritten):
            raise
        if folder is not None and not folder.is_dir():
            raise NotWritten(f"{folder} is gone: it was deleted while the run was writing it.") from error
        if not is_full(error):
            raise
        raise NotWritten(f"{_where(error, folder)}: {error.strerror}; {_how_to_go_on(folder)}") from error


def _where(error: OSError, folder: Path | None) -> str:
    if error.filename is not None:
        return f"{error.filename} cannot be written"
    return f"The run{'' if folder is None else f' in {folder}'} cannot be written"


def _how_to_go_on(folder: Path | None) -> str:
    last = None if folder is None else folder / "checkpoints" / "last.ckpt"
    if last is None or not last.is_file():
        return "nothing was saved."
    return f"make room, and go on with --ckpt_path {last}"
