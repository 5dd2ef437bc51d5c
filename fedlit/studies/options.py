"""Options by name: read strictly from a study's file, and flattened."""

import difflib
from collections.abc import Iterable, Iterator, Mapping
from math import inf, isfinite
from pathlib import Path
from typing import Any

from fedlit.strict_yaml import read_yaml

GROUPS = ("trainer", "model", "data")  # whose options may stand nested, as in a recipe


def read_mapping(path: Path) -> Mapping[str, Any]:
    """Read the file of a study."""
    try:
        content = read_yaml(path, str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    if not isinstance(content, Mapping) or not content:
        kind = "nothing" if content is None else f"a {type(content).__name__}"
        raise ValueError(f"{path} must hold a study by name, such as `rows:`, got {kind}.")
    return content


def as_mapping(value: Any, where: str) -> Mapping[str, Any]:
    """The value, if it holds things by name; nothing is an empty mapping."""
    require(isinstance(value, Mapping | None), f"{where} must hold options by name", value)
    return value or {}


def check_keys(given: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Refuse an unknown key, and suggest the nearest known one."""
    known = list(known)
    for key in given:
        if key in known:
            continue
        near = difflib.get_close_matches(str(key), known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}."
        raise ValueError(f"{where}: `{key}` is not known; {hint}")


def require(is_right: bool, what: str, given: Any) -> None:
    """Refuse a value in a line that says what it must be."""
    if not is_right:
        raise ValueError(f"{what}, got {given!r}.")


def is_whole(value: Any, least: int, most: float = inf) -> bool:
    """Whether YAML gave a whole number within bounds; a bool is none."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_number(value: Any) -> bool:
    """Whether YAML gave a finite number; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)


def flat_options(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by their dotted names, of groups too; what has a class is one value: its arguments mean nothing alone."""
    for key, value in options.items():
        name = f"{prefix}{key}"
        is_group = name in GROUPS or name.endswith(".init_args")
        if is_group and isinstance(value, Mapping) and "class_path" not in value:
            yield from flat_options(value, f"{name}.")
        else:
            yield name, value


def flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """A configuration by dotted names.

    Example:
        >>> flat({"model": {"class_path": "FML", "init_args": {"alpha": 0.5}}})
        {'model.class_path': 'FML', 'model.alpha': 0.5}
    """
    found: dict[str, Any] = {}
    for key, value in config.items():
        name = prefix if key == "init_args" else f"{prefix}{key}."
        if isinstance(value, Mapping) and value:
            found |= flat(value, name)
        else:
            found[name.rstrip(".")] = value
    return found
