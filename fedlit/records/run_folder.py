"""The folder of a run, and the checkpoint that `--ckpt_path` means."""

import fcntl
import re
from itertools import count
from pathlib import Path
from typing import TextIO

RUNS = "lightning_logs"
LOCK = ".lock"
CLIENTS = "clients"  # below the checkpoints: files of what stays with clients
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
    """A new `lightning_logs/version_N`, or one of that name; two runs that start at once get two folders.

    Args:
        root: Where `lightning_logs` stands.
        name: Of the run; refused if there is such a run already.
    """
    runs = root / RUNS
    try:
        runs.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"`trainer.default_root_dir` {root} cannot hold a run: {error.strerror}.") from error
    if name is not None:
        return _claimed_by_name(runs / name)
    for number in count(max(_versions(runs), default=-1) + 1):
        folder = runs / f"version_{number}"
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("count() never ends")


def _claimed_by_name(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    holds = any(not path.name.startswith(".") for path in folder.iterdir())
    has_checkpoints = any(folder.glob("checkpoints/*.ckpt"))
    is_run = has_checkpoints or _has_ended(folder)  # a run may write no checkpoints
    was_killed_at_once = (folder / LOCK).exists() and not is_run
    if holds and not was_killed_at_once:
        go_on = "go on with it by `--ckpt_path last`, or " if has_checkpoints else ""
        raise ValueError(
            f"`trainer.run_name` {folder.name}: there is such a run in {folder.parent}; {go_on}give another name (null "
            "is a number)."
        )
    return folder


def _has_ended(folder: Path) -> bool:
    """Whether the run in a folder came to its end, by its events."""
    events = folder / "events.jsonl"
    return events.is_file() and '"event": "end"' in events.read_text(errors="replace")


def lock_folder(folder: Path) -> TextIO:
    """Hold a run's folder until the file is closed: two processes that write one run would spoil it."""
    lock = open_lock(folder / LOCK)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        raise ValueError(f"{folder} is in use: another process is still writing this run.") from error
    return lock


def open_lock(path: Path) -> TextIO:
    """A file to lock, made if it is not there; a FIFO of that name, which a reader would be waited for, is refused."""
    if path.exists() and not path.is_file():
        raise FileExistsError(f"{path} must be a file, which a run locks; delete it.")
    return path.open("a")


def sweep(folder: Path) -> None:
    """Remove temporary files of a killed process from a run's folder; only for the holder of its lock."""
    for place in (folder, folder / "checkpoints", folder / "checkpoints" / CLIENTS):
        for path in place.glob(".*.tmp"):
            path.unlink(missing_ok=True)


def sweep_runs(root: Path) -> None:
    """The same in all runs that no process is writing: a run that was killed at once may never be resumed."""
    for lock in (root / RUNS).glob(f"*/{LOCK}"):
        folder = lock.parent
        if not any(folder.rglob(".*.tmp")):
            continue
        try:
            with lock_folder(folder):
                sweep(folder)
        except (ValueError, OSError):  # in use, or another user's
            continue


def folder_of(checkpoint: Path) -> Path | None:
    """The folder of the run that a checkpoint belongs to, if it lies in one."""
    return checkpoint.parent.parent if checkpoint.parent.name == "checkpoints" else None


def find_checkpoint(ckpt_path: str | None, root: Path, may_begin: bool = False, name: str | None = None) -> Path | None:
    """The file that `--ckpt_path` names: a path, or `last` or `best` of a run; `auto` is its last, if any.

    Args:
        ckpt_path: As the user typed it.
        root: Where `lightning_logs` stands.
        may_begin: Whether `auto` is allowed.
        name: Of the run that is meant; the newest without one.
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
        raise ValueError(
            f"`--ckpt_path {ckpt_path}` looks for a run, but there is none in {root / RUNS}{_named(root)}."
        )
    checkpoints = run / "checkpoints"
    if ckpt_path == "auto":
        return last_checkpoint(checkpoints)
    found = checkpoints / f"{ckpt_path}.ckpt"
    if not found.exists() and last_checkpoint(checkpoints) != found:
        meant = "the newest run" if name is None else f"`trainer.run_name` {name}"
        raise ValueError(f"`--ckpt_path {ckpt_path}` means {meant}, but there is no {found}.")
    return found


def _named(root: Path) -> str:
    """How to mean a run that has a name, where there are such runs."""
    names = sorted(path.parent.name for path in (root / RUNS).glob("*/checkpoints"))
    if not names:
        return ""
    return f" without a name; `--trainer.run_name` says which of {', '.join(names[:MANY])}"


def newest_run(root: Path) -> Path | None:
    """The folder of the newest run in `root`, if there is one, of those without a name: they are numbered."""
    runs = root / RUNS
    versions = _versions(runs)
    if not versions:
        return None
    return runs / f"version_{max(versions)}"


def last_checkpoint(checkpoints: Path) -> Path | None:
    """The checkpoint from which a run resumes; None if it was killed before its first one.

    Where the last is gone and the one before it is not, it is the last that is meant: reading it falls back.
    """
    found = checkpoints / "last.ckpt"
    is_there = found.exists() or found.with_name("previous.ckpt").exists()
    return found if is_there else None


def _versions(runs: Path) -> list[int]:
    numbers = []
    for path in runs.glob("version_*"):
        name = re.fullmatch(NUMBERED, path.name)
        if name is not None:
            numbers.append(int(name[1]))
    return numbers
