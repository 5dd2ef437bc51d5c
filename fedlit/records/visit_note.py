"""Whom a process is visiting, where whoever comes after it can read it: a visit may kill its process.

A note is a few bytes of a mapped file, which the kernel keeps when the process is gone; to write it takes about a
microsecond. A process that ends in good order takes its note away. One that is left names a client that may have killed
its process, or that was just being visited when somebody else did: it is not left out for that, but from then on
visited in a process of its own (`child_process`), with the same bits, and left out if that dies, too.
"""

import mmap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = ".visiting_"
SIZE = 32  # bytes: a client's number, and zeros


class VisitNote:
    """The note of one process.

    Args:
        folder: Of the run.
        rank: Of the process.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self.path = folder / f"{PREFIX}{rank}"
        self.path.write_bytes(bytes(SIZE))
        with self.path.open("r+b") as file:
            self._page = mmap.mmap(file.fileno(), SIZE)

    @contextmanager
    def of(self, client: int) -> Iterator[None]:
        """Within, a client is visited; however that ends, the process is alive afterwards."""
        self._write(str(client).encode())
        try:
            yield
        finally:
            self._write(b"")

    def remove(self) -> None:
        """The process ends in good order."""
        self._page.close()
        self.path.unlink(missing_ok=True)

    def _write(self, text: bytes) -> None:
        self._page[:] = text.ljust(SIZE, b"\0")


def taken_notes(folder: Path) -> list[int]:
    """Clients that were being visited when their processes died; the notes are gone afterwards."""
    found: set[int] = set()
    for path in folder.glob(f"{PREFIX}*"):
        text = path.read_bytes().rstrip(b"\0").decode(errors="replace")
        if text.isdecimal():
            found.add(int(text))
        path.unlink(missing_ok=True)
    return sorted(found)
