"""Torch files that are written whole or not at all, and tell a flipped bit.

A torch file is a zip archive with the CRC-32 of every entry; `torch.load` does not look at it.
"""

import io
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch


def dump(content: Any, path: Path) -> None:
    """Write plain tensors, numbers, strings and containers of them; what cannot be written whole leaves nothing."""
    try:
        write(content, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write(content: Any, path: Path | str) -> None:
    """The same, but what was written remains."""
    with _File(io.FileIO(path, "w")) as file:
        torch.save(content, file)
    if file.error is not None:
        raise file.error


class _File(io.BufferedWriter):
    """A file that stores its first error, and is not written after it.

    torch's writer does not handle an error: it would write on, and end in an error of its own.
    """

    error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.error is None:
            with self._storing_errors():
                super().write(data)
        return memoryview(data).nbytes

    def close(self) -> None:
        with self._storing_errors():
            super().close()

    @contextmanager
    def _storing_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error


def damage(path: Path) -> str | None:
    """What is wrong with a file, by its checksums; nothing if it holds what was written."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = archive.testzip()
    except Exception as error:  # of zipfile, or of the decoders that a flipped bit names
        return f"it cannot be read ({error})"
    return None if entry is None else f"{entry!r} in it does not match its checksum"
