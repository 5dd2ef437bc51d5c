"""Checkpoints that survive a kill at any moment and tell a flipped bit.

A file is written beside its target and moved over it in one step.
"""

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from fedlit.records import client_files
from fedlit.records.client_files import FILES
from fedlit.records.torch_file import damage, dump

FORMAT = 4
WITH_FILES = 5  # the same, with clients in files beside it
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
    "made_with",  # versions that wrote it
    "choices",  # the options that its rounds were run with
)
Signature = tuple[int, int, int]


class Damaged(ValueError):
    """A checkpoint that is not what was written."""


class Checkpoints:
    """`last.ckpt`, the one before it and the best of a run. At every moment, one that is good stands there.

    Args:
        folder: Where they are.
        checked: The file that a fit goes on from, which was checked when it was read.
    """

    def __init__(self, folder: Path, checked: Path | None = None) -> None:
        self.last = folder / "last.ckpt"
        self.previous = folder / "previous.ckpt"
        self.best = folder / "best.ckpt"
        self._good: Signature | None = None
        if checked is not None and checked.resolve() == self.last.resolve():
            self._good = _signature(self.last)

    def save(self, content: dict[str, Any], improved: bool) -> None:
        """A checkpoint; the one before is kept, and the best."""
        if self._is_last_good():  # else previous.ckpt may be the only good one
            keep(self.last, self.previous)
        # The best first: killed in between, the run goes on from the last and comes to the same best again.
        target = self.best if improved else self.last
        save(content, target)
        if improved:
            keep(target, self.last)
        self._good = _signature(self.last)
        if FILES in content:
            self.sweep_clients(content[FILES].values())

    def go_back(self, content: dict[str, Any], origin: Path) -> None:
        """Let a run that goes on from another checkpoint than its last have none that is ahead of it.

        Killed before its first save, it would else go on from rounds that its records have forgotten.

        Args:
            content: Of the checkpoint that it goes on from.
            origin: Where that lies.
        """
        save(content, self.last)
        if origin.resolve().parent == self.last.resolve().parent:
            keep(origin, self.previous)
        self._good = _signature(self.last)

    def sweep_clients(self, named: Iterable[str]) -> None:
        """Remove files of clients that are in no checkpoint any more, once they are as many as those that are.

        Args:
            named: Those that the last names.
        """
        folder = self.last.parent
        wanted = {*named}
        if client_files.num_files(folder) <= 2 * len(wanted):
            return
        for path in (self.previous, self.best):
            if path.is_file():
                content = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
                wanted |= {*content.get(FILES, {}).values()}
        client_files.sweep(folder, wanted)

    def _is_last_good(self) -> bool:
        """Whether the last is as it was written or read here; one that is not is looked at again."""
        if not self.last.is_file():
            return False
        return _signature(self.last) == self._good or damage(self.last) is None


def _signature(path: Path) -> Signature:
    """What changes when somebody else writes a file."""
    found = path.stat()
    return found.st_ino, found.st_size, found.st_mtime_ns


def save(content: dict[str, Any], path: Path) -> None:
    """Write plain tensors, numbers, strings and containers of them."""
    path.parent.mkdir(exist_ok=True)  # not its parents: a run's folder that is gone was deleted
    temporary = _beside(path)
    temporary.unlink(missing_ok=True)  # left by a kill in `keep`, it would be another checkpoint's own file
    dump(content, temporary)
    os.replace(temporary, path)


def keep(path: Path, target: Path) -> None:
    """Let `target` be what `path` is now, whatever becomes of `path`; costs no copy where the file system has links."""
    if target.exists() and target.samefile(path):  # to move one link of a file over another would do nothing
        return
    temporary = _beside(target)
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:
        shutil.copyfile(path, temporary)
    os.replace(temporary, target)


def _beside(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


def sync(folder: Path) -> None:
    """Let what was written outlast a power cut, too; a killed process needs none of it, and it may take long."""
    for path in (*folder.rglob("*"), folder):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
    problem = damage(path)
    if problem is None:
        content = _read(path, option)
        problem = client_files.damage(content.get(FILES, {}), path.parent)
    if problem is not None:
        raise Damaged(f"`{option}` {path} is damaged: {problem}.")
    return _with_clients(content, path.parent)


def _with_clients(content: dict[str, Any], folder: Path) -> dict[str, Any]:
    """As if all stood in the checkpoint."""
    for client, name in content.get(FILES, {}).items():
        for key, kept in client_files.read(name, folder).items():
            content.setdefault(key, {})[client] = kept
    return content


def load_last(path: Path) -> tuple[dict[str, Any], Path, str | None]:
    """Read a checkpoint; in place of a `last.ckpt` that is damaged or gone, the one before it, and why.

    Nothing else is fallen back upon: to evaluate another round than `best` would be to evaluate another model.
    """
    previous = path.with_name("previous.ckpt")
    if path.name != "last.ckpt" or not previous.is_file():
        return load(path), path, None
    try:
        if not path.is_file():
            raise Damaged(f"`--ckpt_path` {path} is gone.")
        return load(path), path, None
    except Damaged as error:
        problem = str(error).rstrip(".")
    try:
        return load(previous), previous, problem
    except ValueError as error:
        raise Damaged(f"{problem}; and {str(error)[0].lower()}{str(error)[1:]}") from error


def _read(path: Path, option: str) -> dict[str, Any]:
    """The content of a file, if it is a checkpoint of a format that is known."""
    try:
        # Mapped, not read: what clients keep may be larger than memory.
        content = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except Exception as error:
        raise Damaged(f"`{option}` {path} is not a checkpoint that can be read safely.") from error
    if not isinstance(content, dict) or "format" not in content:
        raise ValueError(f"`{option}` {path} is not a checkpoint of fedlit: it lacks format.")
    if content["format"] not in (FORMAT, WITH_FILES):
        by = content.get("made_with", {}).get("fedlit", "another version")
        raise ValueError(
            f"`{option}` {path} has format {content['format']}, of fedlit {by}, but this fedlit reads {FORMAT} and "
            f"{WITH_FILES}."
        )
    for key in KEYS:
        if key not in content:
            raise ValueError(f"`{option}` {path} is not a checkpoint of fedlit: it lacks {key}.")
    return content
