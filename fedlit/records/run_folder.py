"""The folder of a run, and the checkpoint that a user means."""

import fcntl
import re
from itertools import count
from pathlib import Path
from typing import TextIO

RUNS = "lightning_logs"


def claim_folder(root: Path) -> Path:
    """A new `lightning_logs/version_N`; two runs that start at once get two folders."""
    runs = root / RUNS
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"`trainer.default_root_dir` {root} cannot hold a run: {error.strerror}.") from error
    for number in count(max(_versions(runs), default=-1) + 1):
        folder = runs / f"version_{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("count() never ends")


def lock_folder(folder: Path) -> TextIO:
    """Hold a run's folder until the file is closed: two processes that write one run would spoil it."""
    lock = (folder / ".lock").open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ValueError(f"{folder} is in use: another process is still writing this run.") from error
    return lock


def sweep(folder: Path) -> None:
    """Remove what a killed process had begun to write in a run's folder; whoever holds the folder may."""
    for place in (folder, folder / "checkpoints"):
        for path in place.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def sweep_runs(root: Path) -> None:
    """The same in all runs that nobody is writing: one that was killed at once may never be gone on with."""
    for folder in (root / RUNS).glob("version_*"):
        if not any(folder.glob(".*.tmp")) and not any(folder.glob("checkpoints/.*.tmp")):
            continue
        try:
            with lock_folder(folder):
                sweep(folder)
        except (ValueError, OSError):  # in use, or another user's
            continue


def folder_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to, if it lies in one."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else None


def find_checkpoint(ckpt_path: str | None, root: Path, may_begin: bool = False) -> Path | None:
    """The file that `--ckpt_path` names: a path, or `last` or `best` of the newest run; `auto` is its last, if any."""
    if not ckpt_path:
        return None
    if ckpt_path == "auto" and not may_begin:
        raise ValueError("`--ckpt_path auto` is for `fit`, which may begin anew; give a file, `last` or `best`.")
    if ckpt_path not in ("last", "best", "auto"):
        return Path(ckpt_path)
    runs = root / RUNS
    versions = _versions(runs)
    if not versions:
        if ckpt_path == "auto":
            return None
        raise ValueError(f"`--ckpt_path {ckpt_path}` looks for a run, but there is none in {runs}.")
    checkpoints = runs / f"version_{max(versions)}" / "checkpoints"
    if ckpt_path == "auto":
        return last_checkpoint(checkpoints)
    found = checkpoints / f"{ckpt_path}.ckpt"
    if not found.exists() and last_checkpoint(checkpoints) != found:
        raise ValueError(f"`--ckpt_path {ckpt_path}` means the newest run, but there is no {found}.")
    return found


def newest_run(root: Path) -> Path | None:
    """The folder of the newest run in `root`, if there is one."""
    runs = root / RUNS
    versions = _versions(runs)
    if not versions:
        return None
    return runs / f"version_{max(versions)}"


def last_checkpoint(checkpoints: Path) -> Path | None:
    """What a run can go on from; None if it was killed before its first checkpoint.

    Where the last is gone and the one before it is not, it is the last that is meant: reading it falls back.
    """
    found = checkpoints / "last.ckpt"
    is_there = found.exists() or found.with_name("previous.ckpt").exists()
    return found if is_there else None


def _versions(runs: Path) -> list[int]:
    numbers = []
    for path in runs.glob("version_*"):
        name = re.fullmatch(r"version_(\d+)", path.name)
        if name is not None:
            numbers.append(int(name[1]))
    return numbers
