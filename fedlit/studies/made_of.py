"""What a run is made of beside its options: the user's own code and data, by their digests.

A run that is done is not made again; so its options must be the same, and what they name, too.
"""

import ast
import sysconfig
from collections.abc import Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
FEDLIT = Path(__file__).parents[1]
NOT_TO_WATCH = (*INSTALLED, FEDLIT)  # they have versions, which every run records


def made_of(config: Mapping[str, Any]) -> dict[str, Path]:
    """The user's own files that options name, and modules of theirs that these import, by the name that a person knows.

    Args:
        config: Every option, resolved: what it names is imported.
    """
    found: dict[str, Path] = {}
    for text in _texts(config):
        found |= _own_files(text.rpartition(".")[0])
    data = config.get("data", {}).get("init_args", {})
    root = Path(str(data.get("root", "."))).expanduser()
    for text in _texts(config):
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


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no name that a file could have
        return False


def _own_files(name: str) -> dict[str, Path]:
    """A module of the user's and those of theirs that it imports, at once or later, by their names."""
    found: dict[str, Path] = {}
    waiting = [name]
    while waiting:
        name = waiting.pop()
        path = _own_file(name)
        if path is None or name in found:
            continue
        found[name] = path
        waiting += _imported(path, name)
    return found


def _own_file(name: str) -> Path | None:
    """Of a module, if it is the user's."""
    try:
        spec = find_spec(name)
    except (ImportError, ValueError):  # no name of a module, or one in what is no package
        return None
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        return None
    if any(Path(spec.origin).is_relative_to(place) for place in NOT_TO_WATCH):
        return None
    return Path(spec.origin)


def _imported(path: Path, name: str) -> Iterator[str]:
    """What a module's text imports; names that are no modules are among them."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source = node.module or ""
            if node.level:
                above = package.rsplit(".", node.level - 1)[0]
                source = f"{above}.{source}".rstrip(".")
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
