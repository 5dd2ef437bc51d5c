"""Checkpoints that survive a kill at any moment, and whose damage is detected.

A file is written beside its target and moved over it in one step. It is a torch file: a zip archive with the CRC-32 of
every entry, at which `torch.load` does not look.

What stays with clients may stand in files beside the checkpoint, so that what did not change is not written again. Such
a file has a name of its own, never changes, and is written before the checkpoint that names it.
"""

import os
import secrets
import shutil
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedlit.records.plain_values import to_bytes

FORMAT = 4
WITH_FILES = 5  # the same, with clients in files beside it
FILES = "client_files"  # in a checkpoint: the names of these files, by client
CLIENTS = "clients"  # their folder, below the checkpoints
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


class Damaged(ValueError):
    """A checkpoint that is not what was written."""


class Checkpoints:
    """`last.ckpt`, the one before it and the best of a run. At every moment, one of the first two is valid.

    `checked` is the file that a fit resumes from, which was checked when it was read.
    """

    def __init__(self, folder: Path, checked: Path | None = None) -> None:
        self.last = folder / "last.ckpt"
        self.previous = folder / "previous.ckpt"
        self.best = folder / "best.ckpt"
        self._is_good = checked is not None and checked.resolve() == self.last.resolve()

    def save(self, content: dict[str, Any], improved: bool) -> None:
        """Write a checkpoint; the one before is kept, and the best."""
        if self.last.is_file() and (self._is_good or damage(self.last) is None):  # else only previous.ckpt may be valid
            keep(self.last, self.previous)
        # The best first: killed in between, the run resumes from the last and comes to the same best again.
        target = self.best if improved else self.last
        save(content, target)
        if improved:
            keep(target, self.last)
        self._is_good = True
        if FILES in content:
            self._sweep_clients(content[FILES].values())

    def go_back(self, content: dict[str, Any], origin: Path) -> None:
        """Make the checkpoint that a run resumes from its last: one that is ahead has rounds that the records lack."""
        save(content, self.last)
        if origin.resolve().parent == self.last.resolve().parent:
            keep(origin, self.previous)
        self._is_good = True

    def _sweep_clients(self, named: Iterable[str]) -> None:
        """Remove files of clients that no checkpoint names, once they are as many as those that the last one names."""
        files = [*(self.last.parent / CLIENTS).glob("*.pt")]
        wanted = {*named}
        if len(files) <= 2 * len(wanted):
            return
        for path in (self.previous, self.best):
            if path.is_file():
                wanted |= {*_load(path).get(FILES, {}).values()}
        for file in files:
            if file.stem not in wanted:
                file.unlink(missing_ok=True)


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
    """Read a checkpoint, or say in one line why it cannot be used: the `option` that named it, and what that takes."""
    if not path.is_file():
        raise ValueError(f"`{option}` must be {allowed}, got {path}, which is no file.")
    problem = damage(path)
    if problem is None:
        content = _read(path, option)
        problem = _damaged_client(content.get(FILES, {}), path.parent)
    if problem is not None:
        raise Damaged(f"`{option}` {path} is damaged: {problem}.")
    for client, name in content.get(FILES, {}).items():  # as if all stood in the checkpoint
        for key, kept in _load(_client_file(path.parent, name)).items():
            content.setdefault(key, {})[client] = kept
    return content


def load_last(path: Path) -> tuple[dict[str, Any], Path, str | None]:
    """Read a checkpoint; in place of a `last.ckpt` that is damaged or gone, the one before it, and why.

    There is no other fallback: to evaluate another round than `best` would be to evaluate another model.
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
        content = _load(path)
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


def _load(path: Path) -> Any:
    """Read without running code; mapped, for what clients keep may be larger than memory."""
    return torch.load(path, weights_only=True, map_location="cpu", mmap=True)


def write_client(kept: Mapping[str, Any], checkpoints: Path) -> str:
    """Write what stays with a client into a file of its own; returns its name."""
    name = secrets.token_hex(16)
    file = _client_file(checkpoints, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    dump(kept, file)
    return name


def _damaged_client(names: Mapping[int, str], checkpoints: Path) -> str | None:
    """What is wrong with the files of clients; None if they are as they were written."""
    for client, name in names.items():
        file = _client_file(checkpoints, name)
        if not file.is_file():
            return f"{CLIENTS}/{file.name}, of client {client}, is gone"
        if problem := damage(file):
            return f"{CLIENTS}/{file.name}, of client {client}: {problem}"
    return None


def _client_file(checkpoints: Path, name: str) -> Path:
    return checkpoints / CLIENTS / f"{name}.pt"


def dump(content: Any, path: Path) -> None:
    """Write plain tensors, numbers, strings and containers of them; what cannot be written whole leaves nothing."""
    try:
        path.write_bytes(to_bytes(content))  # `torch.save` to a path would hide the error of a full disk
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def damage(path: Path) -> str | None:
    """What is wrong with a torch file, by its checksums; None if it holds what was written."""
    try:
        with zipfile.ZipFile(path) as archive:
            entry = archive.testzip()
    except Exception as error:  # of zipfile, or of the decoders that a flipped bit names
        return f"it cannot be read ({error})"
    return None if entry is None else f"{entry!r} in it does not match its checksum"
