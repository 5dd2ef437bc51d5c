"""Checkpoints that survive a kill at any moment and tell a flipped bit.

A file is written beside its target and moved over it in one step. Its SHA-256 stands beside it; while the file
is being replaced that note holds the old digest and the new one.
"""

import hashlib
import io
import os
import shutil
from pathlib import Path
from typing import Any

import torch

FORMAT = 3
KEYS = (
    "format",
    "round",
    "stages",
    "global_state",
    "personal_states",
    "optimizer_states",
    "initial_state",
    "last",
    "best",
    "collected",
    "server_optimizer",
    "fingerprint",
)


def save(content: dict[str, Any], path: Path) -> None:
    """Write plain tensors, numbers, strings and containers of them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)  # left by a kill in `keep`, it would be another checkpoint's own file
    with _Hashed(io.FileIO(temporary, "w")) as file:
        torch.save(content, file)
    _move(temporary, path, [file.digest.hexdigest()])


class _Hashed(io.BufferedWriter):
    """A file that is hashed as it is written: a checkpoint may be too large to hold in memory once more."""

    def __init__(self, file: io.FileIO) -> None:
        super().__init__(file)
        self.digest = hashlib.sha256()

    def write(self, data: Any) -> int:
        self.digest.update(data)
        return super().write(data)


def keep(path: Path, target: Path) -> None:
    """Let `target` be what `path` is now, whatever becomes of `path`; costs no copy where the file system has links."""
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        shutil.copyfile(path, temporary)
    _move(temporary, target, known_digests(path))


def _move(temporary: Path, path: Path, digests: list[str]) -> None:
    _write_note(path, [*digests, *known_digests(path)])
    os.replace(temporary, path)
    _write_note(path, digests)


def sync(folder: Path) -> None:
    """Let what was written outlast a power cut, too; a killed process needs none of it, and it may take long."""
    for path in (*folder.iterdir(), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _write_note(path: Path, digests: list[str]) -> None:
    temporary = path.with_name(f".{path.name}.sha256.tmp")
    temporary.write_text("".join(f"{digest}  {path.name}\n" for digest in digests))
    os.replace(temporary, note(path))


def note(path: Path) -> Path:
    """Where the digest of a checkpoint stands."""
    return path.with_name(f"{path.name}.sha256")


def known_digests(path: Path) -> list[str]:
    """What the note beside a checkpoint says: one digest, two while it is replaced, none without a note."""
    if not note(path).exists():
        return []
    lines = note(path).read_text().splitlines()
    return [line.split()[0] for line in lines if line.strip()]


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for part in iter(lambda: file.read(2**20), b""):
            digest.update(part)
    return digest.hexdigest()


def load(
    path: Path, option: str = "--ckpt_path", allowed: str = "a checkpoint file, `last` or `best`"
) -> dict[str, Any]:
    """Read a checkpoint, or say in one line why it cannot be used.

    Args:
        path: Where it lies.
        option: What named it, as the user typed it.
        allowed: What that option takes.
    """
    if not path.is_file():
        raise ValueError(f"`{option}` must be {allowed}, got {path}, which is no file.")
    digests = known_digests(path)
    if digests and _digest(path) not in digests:
        raise ValueError(f"`{option}` {path} is damaged: it does not match {note(path).name}; try previous.ckpt.")
    try:
        # Mapped, not read: what clients keep may be larger than memory.
        content = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except Exception as error:
        raise ValueError(f"`{option}` {path} is not a checkpoint that can be read safely.") from error
    for key in KEYS:
        if not isinstance(content, dict) or key not in content:
            raise ValueError(f"`{option}` {path} is not a checkpoint of fedlit: it lacks {key}.")
    if content["format"] != FORMAT:
        raise ValueError(f"`{option}` {path} has format {content['format']}, but this fedlit reads {FORMAT}.")
    return content
