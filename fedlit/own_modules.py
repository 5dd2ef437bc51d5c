"""A user's own modules and files: those that options name, and whatever of the user's own modules these import.

They are parsed, not imported: an import may take long or raise.
"""

import ast
import re
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

INSTALLED = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
FEDLIT = Path(__file__).parent
NOT_OWN = (*INSTALLED, FEDLIT)  # they have versions, which every run records
INSTALLERS = {"site-packages", "dist-packages"}  # of a user, or of the system under a virtual environment
DOTTED = re.compile(r"[^\W\d]\w*(\.\w+)+")


def own_modules(options: Any) -> dict[str, Path]:
    """Files of the user's modules that dotted names among options lead to, by the modules' names.

    Args:
        options: As a recipe has them: mappings and lists of them, and texts among others.
    """
    names = [text.rpartition(".")[0] for text in texts(options) if DOTTED.fullmatch(text)]
    found: dict[str, Path] = {}
    seen: set[str] = set()
    while names:
        name = names.pop()
        if name in seen:
            continue
        seen.add(name)
        names.append(name.rpartition(".")[0])  # a package is imported before what it holds
        path = _own_file(name)
        if path is not None:
            found[name] = path
            names += _imported(path, name)
    return found


def texts(options: Any) -> Iterator[str]:
    """Every text among options.

    Example:
        >>> list(texts({"a": "b", "c": [1, {"d": "e"}]}))
        ['b', 'e']
    """
    inner: Iterable[Any] = ()
    if isinstance(options, str):
        yield options
    elif isinstance(options, Mapping):
        inner = options.values()
    elif isinstance(options, list):
        inner = options
    for value in inner:
        yield from texts(value)


def _own_file(name: str) -> Path | None:
    """Of a module, if it is the user's."""
    try:
        found = _file(name)
    except (ImportError, ValueError, OSError):  # no name that a module could have
        return None
    if found is None or INSTALLERS & set(found.parts) or any(found.is_relative_to(place) for place in NOT_OWN):
        return None
    return found


def _file(name: str) -> Path | None:
    """Of a module in Python; `find_spec` alone would import the packages around it."""
    first, *inner = name.split(".")
    spec = find_spec(first)
    if spec is None:
        return None
    if not inner:
        is_python = spec.origin is not None and spec.origin.endswith(".py")
        return Path(str(spec.origin)) if is_python else None
    for folder in spec.submodule_search_locations or []:
        place = Path(folder, *inner)
        for path in (place / "__init__.py", place.with_name(f"{place.name}.py")):
            if path.is_file():
                return path
    return None


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


def own_files(config: Mapping[str, Any]) -> dict[str, Path]:
    """The user's own files that options name, and the user's modules that these import, by name.

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
    """The digest of a file or folder; of Python code without comments."""
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
