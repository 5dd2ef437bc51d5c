"""The folder of a run, and the checkpoint that `--ckpt_path` means."""

import fcntl
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TextIO

RUNS = "lightning_logs"
LOCK = ".lock"
OF_RUNS = (LOCK, "checkpoints", "events.jsonl")  # the folder of a run that has begun has one of these
NUMBERED = r"version_(\d+)"
NAME = r"[A-Za-z0-9][A-Za-z0-9_\-.+=,]{0,99}"
MANY = 8  # names that are listed


def check_name(name: str) -> None:
    """Refuse what is no name of a folder, or one that runs without a name have."""
    if not isinstance(name, str) or not re.fullmatch(NAME, name):
        raise ValueError(
            "`trainer.run_name` must be up to 100 letters, digits, `_`, `-`, `.`, `+`, `=` or `,`, the first a letter "
            f"or a digit, got {name!r}."
        )
    if re.fullmatch(NUMBERED, name):
        raise ValueError(f"`trainer.run_name` must not be {name}: runs without a name are called so.")


def claim_folder(root: Path, name: str | None = None) -> Path:
    """A new `lightning_logs/version_N` in `root`, or one of that name; two runs that start at once get two folders."""
    runs = root / RUNS
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"`trainer.default_root_dir` {root} cannot hold a run: {error.strerror}.") from error
    if name is not None:
        return _claimed_by_name(runs / name)
    number = max(_numbered(runs), default=-1)
    while True:
        number += 1
        with suppress(FileExistsError):
            (runs / f"version_{number}").mkdir()
            return runs / f"version_{number}"


def _claimed_by_name(folder: Path) -> Path:
    """The folder, which is empty or of a run that was killed before its first checkpoint."""
    folder.mkdir(exist_ok=True)
    has_checkpoints = any(folder.glob("checkpoints/*.ckpt"))
    events = folder / "events.jsonl"
    has_ended = events.is_file() and '"event": "end"' in events.read_text(errors="replace")
    was_killed_at_once = (folder / LOCK).exists() and not has_checkpoints and not has_ended
    if any(not path.name.startswith(".") for path in folder.iterdir()) and not was_killed_at_once:
        go_on = "go on with it by `--ckpt_path last`, or " if has_checkpoints else ""
        raise ValueError(
            f"`trainer.run_name` {folder.name}: there is such a run in {folder.parent}; {go_on}give another name (null "
            "is a number)."
        )
    return folder


def lock_folder(folder: Path, is_inherited: bool = True) -> TextIO:
    """Hold a run's folder until the file is closed: two processes that write one run would spoil it.

    By default, processes that this one forks hold it, too. Not so workers that read samples: they live on for some
    seconds after their parent was killed, when the run may be resumed.
    """
    lock = open_lock(folder / LOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ValueError(f"{folder} is in use: another process is still writing this run.") from error
    if not is_inherited:
        os.register_at_fork(after_in_child=lock.close)
    return lock


def open_lock(path: Path) -> TextIO:
    """A file to lock, made if it is not there."""
    return path.open("a")


def sweep(folder: Path) -> None:
    """Remove temporary files of a killed process from a run's folder; only for the holder of its lock."""
    for path in folder.rglob(".*.tmp"):
        path.unlink(missing_ok=True)


def sweep_runs(root: Path) -> None:
    """The same in all runs that no process is writing: a run that was killed at once may never be resumed."""
    for lock in (root / RUNS).glob(f"*/{LOCK}"):
        with suppress(ValueError, OSError), lock_folder(lock.parent):  # not if it is in use, or another user's
            sweep(lock.parent)


def folder_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to, if it lies in one."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else None


def find_checkpoint(ckpt_path: str | None, root: Path, may_begin: bool = False, name: str | None = None) -> Path | None:
    """The file that `--ckpt_path` names: a path, or `last` or `best` of a run; `auto` is its last, if any.

    The run is that of a name, or the newest in `root`; a command that may begin anew takes `auto`.
    """
    if not ckpt_path:
        return None
    if ckpt_path == "auto" and not may_begin:
        raise ValueError("`--ckpt_path auto` is for `fit`, which may begin anew; give a file, `last` or `best`.")
    if ckpt_path not in ("last", "best", "auto"):
        return Path(ckpt_path)
    run = newest_run(root) if name is None else root / RUNS / name
    if run is None:
        if ckpt_path == "auto":
            return None
        names = sorted(path.parent.name for path in (root / RUNS).glob("*/checkpoints"))[:MANY]
        hint = f" without a name; `--trainer.run_name` says which of {', '.join(names)}" if names else ""
        raise ValueError(f"`--ckpt_path {ckpt_path}` looks for a run, but there is none in {root / RUNS}{hint}.")
    checkpoints = run / "checkpoints"
    if ckpt_path == "auto":
        return last_checkpoint(checkpoints)
    found = checkpoints / f"{ckpt_path}.ckpt"
    if not found.exists() and last_checkpoint(checkpoints) != found:
        meant = "the newest run" if name is None else f"`trainer.run_name` {name}"
        raise ValueError(f"`--ckpt_path {ckpt_path}` means {meant}, but there is no {found}.")
    return found


def newest_run(root: Path) -> Path | None:
    """The folder of the newest run in `root` that has no name, if there is one.

    Lightning's CSVLogger and TensorBoardLogger may number folders of their own there, which are no runs.
    """
    numbered = _numbered(root / RUNS)
    runs = [number for number, folder in numbered.items() if not _is_of_a_logger(folder)]
    return numbered[max(runs)] if runs else None


def _is_of_a_logger(folder: Path) -> bool:
    return any(folder.iterdir()) and not any((folder / name).exists() for name in OF_RUNS)


def last_checkpoint(checkpoints: Path) -> Path | None:
    """The checkpoint from which a run resumes; None if it was killed before its first one.

    Where the last is gone and the one before it is not, it is the last that is meant: reading it falls back.
    """
    found = checkpoints / "last.ckpt"
    is_there = found.exists() or found.with_name("previous.ckpt").exists()
    return found if is_there else None


def _numbered(runs: Path) -> dict[int, Path]:
    """The folders `version_N`, by number."""
    numbers = {path: re.fullmatch(NUMBERED, path.name) for path in runs.glob("version_*")}
    return {int(found[1]): path for path, found in numbers.items() if found is not None}
