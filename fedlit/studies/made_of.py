"""What a run is made of beside its options: the user's own code and data, by their digests.

A run that is done is not made again; so its options must be the same, and what they name, too.
"""

import ast
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from fedlit.own_modules import own_modules, texts


def made_of(config: Mapping[str, Any]) -> dict[str, Path]:
    """The user's own files that options name, and modules of theirs that these import, by the name that a person knows.

    Args:
        config: Every option, resolved.
    """
    found = own_modules(config)
    data = config.get("data", {}).get("init_args", {})
    root = Path(str(data.get("root", "."))).expanduser()
    for text in texts(config):
        for path in (Path(text).expanduser(), root / text, root / f"{text}.npz"):
            if _is_file(path) or (text == data.get("dataset") and path.is_dir()):
                found[text] = path
                break
    return found


def digest(path: Path) -> str:
    """Of a file or a folder; of Python only what is run, so that a comment may change."""
    if path.is_dir():
        listed = [f"{file.relative_to(path)} {file.stat().st_size}" for file in sorted(path.rglob("*"))]
        return sha256("\n".join(listed).encode()).hexdigest()
    if not path.exists():
        return "gone"
    status = path.stat()
    return _digest(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1000)
def _digest(path: Path, modified: int, size: int) -> str:
    """A large file is read once, unless it is changed."""
    if path.suffix == ".py":
        try:
            return sha256(ast.dump(ast.parse(path.read_bytes())).encode()).hexdigest()
        except (SyntaxError, ValueError):
            pass  # as it stands, then
    seen = sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            seen.update(block)
    return seen.hexdigest()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no name that a file could have
        return False
