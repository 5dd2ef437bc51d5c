"""What stays with clients, in files of their own beside a checkpoint: what did not change is not written again.

Every file has a name of its own and never changes, so checkpoints that name it have the same. It is written before the
checkpoint that names it: killed in between, a run has a file too many.
"""

import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from fedlit.records import torch_file
from fedlit.records.run_folder import CLIENTS

FILES = "client_files"  # in a checkpoint: the names, by client
Kept = Mapping[str, Any]  # of one client, by the names under which a checkpoint has it of all


def write(kept: Kept, checkpoints: Path) -> str:
    """Write what stays with a client, plain tensors, numbers, strings and containers of them; the name of its file."""
    name = secrets.token_hex(16)
    file = _file(checkpoints, name)
    file.parent.mkdir(parents=True, exist_ok=True)
    torch_file.dump(kept, file)
    return name


def read(name: str, checkpoints: Path) -> Kept:
    """What stays with a client: mapped, not read."""
    return torch.load(_file(checkpoints, name), weights_only=True, map_location="cpu", mmap=True)


def damage(names: Mapping[int, str], checkpoints: Path) -> str | None:
    """What is wrong with the files of clients; nothing if they are as they were written."""
    for client, name in names.items():
        file = _file(checkpoints, name)
        if not file.is_file():
            return f"{CLIENTS}/{file.name}, of client {client}, is gone"
        if problem := torch_file.damage(file):
            return f"{CLIENTS}/{file.name}, of client {client}: {problem}"
    return None


def sweep(checkpoints: Path, named: Iterable[str]) -> None:
    """Remove files that no checkpoint names."""
    wanted = {_file(checkpoints, name) for name in named}
    for file in (checkpoints / CLIENTS).glob("*.pt"):
        if file not in wanted:
            file.unlink(missing_ok=True)


def num_files(checkpoints: Path) -> int:
    """How many there are, named or not."""
    return len(list((checkpoints / CLIENTS).glob("*.pt")))


def _file(checkpoints: Path, name: str) -> Path:
    return checkpoints / CLIENTS / f"{name}.pt"
