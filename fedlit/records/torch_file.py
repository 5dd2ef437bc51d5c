"""Torch files that are written whole or not at all, with their digest in the file.

The digest is the comment of the zip archive that a torch file is: `torch.load` and `unzip` read the file as ever.

    fedlit checkpoint sha256 <64 digits>

The digest is that of the archive without its comment, which is what torch wrote.
"""

import hashlib
import io
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

WORDS = b"fedlit checkpoint sha256 "
LENGTH = len(WORDS) + 64
BEGIN = b"PK\3\4"  # of an archive
NO_COMMENT = b"\0\0"  # how an archive ends that has none
END = b"PK\5\6"  # of an archive: its last record, 22 bytes without a comment
PART = 2**20


def dump(content: Any, path: Path) -> None:
    """Write plain tensors, numbers, strings and containers of them; what cannot be written whole leaves nothing."""
    try:
        write(content, path)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def write(content: Any, path: Path | str, sealed: bool = True) -> None:
    """The same, but what was written remains.

    Args:
        content: What to write.
        path: Where to; what was there is overwritten.
        sealed: Whether to put its digest in.
    """
    with _Hashed(io.FileIO(path, "w"), sealed) as file:
        torch.save(content, file)
        if sealed:
            file.seal()
    if file.error is not None:
        raise file.error


class _Hashed(io.BufferedWriter):
    """A file that is hashed as it is written: a checkpoint may be too large to hold in memory once more.

    torch's writer does not handle an error: it would write on, and end in an error of its own. So the first one is
    stored in `error`, and nothing is written after it.
    """

    def __init__(self, file: io.FileIO, hashes: bool) -> None:
        super().__init__(file)
        self.hashes = hashes
        self.digest = hashlib.sha256()
        self.error: OSError | None = None

    def write(self, data: Any) -> int:
        if self.hashes:
            self.digest.update(data)
        size = memoryview(data).nbytes
        if self.error is None:
            with self._storing_errors():
                super().write(data)
        return size

    def seal(self) -> None:
        """Put the digest into the archive, as its comment."""
        with self._storing_errors():
            self.flush()
            self.seek(-len(NO_COMMENT), os.SEEK_END)
            super().write(LENGTH.to_bytes(2, "little") + WORDS + self.digest.hexdigest().encode())

    def close(self) -> None:
        with self._storing_errors():
            super().close()

    @contextmanager
    def _storing_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            self.error = self.error or error


def seal_of(path: Path) -> str | None:
    """The digest that stands in a file, if there is one."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - LENGTH - len(NO_COMMENT)))
        end = file.read()
    found = re.fullmatch(re.escape(LENGTH.to_bytes(2, "little") + WORDS) + rb"([0-9a-f]{64})", end, re.DOTALL)
    return None if found is None else found[1].decode()


def is_archive(path: Path) -> bool:
    """Whether a file begins as a torch file does."""
    with path.open("rb") as file:
        return file.read(len(BEGIN)) == BEGIN


def is_plain(path: Path) -> bool:
    """Whether a file ends as torch leaves it, without a digest; a damaged digest is not that."""
    with path.open("rb") as file:
        file.seek(0, os.SEEK_END)
        file.seek(max(0, file.tell() - 22))
        end = file.read()
    return end.startswith(END) and end.endswith(NO_COMMENT)


def digest_of(path: Path) -> str:
    """Of a file that has a digest: of what torch wrote."""
    left = path.stat().st_size - LENGTH - len(NO_COMMENT)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while left > 0:
            part = file.read(min(PART, left))
            if not part:
                break
            left -= len(part)
            digest.update(part)
    digest.update(NO_COMMENT)
    return digest.hexdigest()
