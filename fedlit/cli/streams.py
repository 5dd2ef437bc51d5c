"""Output that nobody reads any more, as after `| head -1`, or that was closed (`2>&-`), ends no run."""

import errno
import io
import os
import select
import sys
from typing import Any, TextIO

STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}


class Unbroken(io.FileIO):
    """A file descriptor to write to that falls silent when it fails.

    Attributes:
        lost: Why it fell silent, unless a reader simply had enough.
    """

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.lost = error
            _to_nowhere(self.fileno(), os.O_WRONLY)
            return len(data)
        if written is None:  # a pipe that does not block, and is full
            select.select([], [self.fileno()], [])
            return self.write(data)
        return written


def keep_streams() -> None:
    """Let standard output and error fall silent instead of failing."""
    for name, descriptor in STREAMS.items():
        if not _is_open(descriptor):
            # Else the next file that is opened would be standard output, and be written to by all who print.
            _to_nowhere(descriptor, os.O_RDONLY if name == "stdin" else os.O_WRONLY)
        stream = getattr(sys, name)
        if name != "stdin" and stream is getattr(sys, f"__{name}__"):  # else somebody has other plans with it
            setattr(sys, name, _unbroken(descriptor, stream))


def lost_output() -> OSError | None:
    """Why not all of standard output was written, if it was not: a full disk."""
    sys.stdout.flush()
    raw = getattr(getattr(sys.stdout, "buffer", None), "raw", None)
    return getattr(raw, "lost", None)


def _unbroken(descriptor: int, stream: TextIO | None) -> TextIO:
    """As the stream that Python has made, if any."""
    raw = io.BufferedWriter(Unbroken(descriptor, "w", closefd=False))
    if not isinstance(stream, io.TextIOWrapper):  # it was closed
        return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    stream.flush()
    # `write_through` (PYTHONUNBUFFERED) passes the text layer only: lines would wait in the buffer below it.
    is_prompt = descriptor == STREAMS["stderr"] or stream.line_buffering or stream.write_through
    return io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=is_prompt)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def _to_nowhere(descriptor: int, flags: int) -> None:
    """What is read there is nothing, and what is written there is gone."""
    null = os.open(os.devnull, flags)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
