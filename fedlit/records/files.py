"""Files that are never seen half written, and the error of a run that cannot write them: a full disk, a folder gone."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NOT_WRITTEN = 4  # exit code of a command that could not write: the disk is full, or the run's folder gone
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside `path`, which replaces it at the end."""
    temporary = path.with_name(f".{path.name}.tmp")
    try:
        yield temporary
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


class NotWritten(OSError):
    """A file of a run cannot be written; those written before are whole."""


def is_full(error: BaseException) -> bool:
    """Whether no space was left: on the disk, in a quota, or in the size that a file may have."""
    return isinstance(error, OSError) and error.errno in FULL


@contextmanager
def explain_unwritable(folder: Path | None) -> Iterator[None]:
    """Raise `NotWritten`, which says how to resume the run in `folder`, in place of errors of the disk."""
    try:
        yield
    except OSError as error:
        if isinstance(error, NotWritten):
            raise
        if folder is not None and not folder.is_dir():
            raise NotWritten(f"{folder} is gone: it was deleted while the run was writing it.") from error
        if not is_full(error):
            raise
        what = error.filename or ("The run" if folder is None else f"The run in {folder}")
        last = None if folder is None else folder / "checkpoints" / "last.ckpt"
        is_there = last is not None and last.is_file()
        how = f"make room, and go on with --ckpt_path {last}" if is_there else "nothing was saved."
        raise NotWritten(f"{what} cannot be written: {error.strerror}; {how}") from error
