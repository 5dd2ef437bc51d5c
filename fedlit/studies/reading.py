"""How a study's file is read: YAML in which nothing stands twice and nothing is unknown."""

import difflib
from collections.abc import Iterable, Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from fedlit.strict_yaml import read_yaml


def read_mapping(path: Path) -> Mapping[str, Any]:
    """What stands in a study's file, by name."""
    try:
        content = read_yaml(path, str(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}.") from error
    if isinstance(content, Mapping) and content:
        return content
    kind = "nothing"
    if content is not None:
        kind = f"a {type(content).__name__}"
    raise ValueError(f"{path} must hold a study by name, such as `rows:`, got {kind}.")


def as_mapping(value: Any, where: str) -> Mapping[str, Any]:
    """The value, if it holds things by name; nothing is an empty mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise ValueError(f"{where} must hold options by name, got {value!r}.")
    return value


def check_keys(given: Iterable[Any], known: Iterable[str], where: str) -> None:
    """Refuse a key that nobody reads, and name the one that may have been meant."""
    known = list(known)
    for key in given:
        if key in known:
            continue
        near = difflib.get_close_matches(str(key), known, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"known are {', '.join(known)}."
        raise ValueError(f"{where}: `{key}` is not known; {hint}")


def is_number(value: Any) -> bool:
    """Whether YAML gave a finite number; a bool is none."""
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
