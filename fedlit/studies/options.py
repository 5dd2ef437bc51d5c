"""Options by name: read strictly from a study's file, flattened, and as arguments of `fedlit fit`."""

import difflib
import json
from collections.abc import Iterable, Iterator, Mapping
from math import isfinite
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
    """Refuse an unknown key, and suggest the nearest known one."""
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


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Options by name, dotted or nested as in a recipe, as arguments of a command.

    Example:
        >>> as_arguments({"model.alpha": 0.5, "trainer": {"num_rounds": 3, "fast": True}})
        ['--model.alpha=0.5', '--trainer.num_rounds=3', '--trainer.fast=true']
        >>> as_arguments({"model": {"class_path": "FedAvg", "init_args": {"weighting": "uniform"}}})
        ['--model={"class_path": "FedAvg", "init_args": {"weighting": "uniform"}}']
    """
    found = []
    for name, value in flat_options(options):
        found.append(f"--{name}={_typed(value)}")
    return found


def flat_options(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options by their dotted names, of groups too; what has a class is one value: its arguments mean nothing alone."""
    for key, value in options.items():
        name = f"{prefix}{key}"
        is_group = name in GROUPS or name.endswith(".init_args")
        if is_group and isinstance(value, Mapping) and "class_path" not in value:
            yield from flat_options(value, f"{name}.")
        else:
            yield name, value


def _typed(value: Any) -> str:
    """A value as one would type it."""
    if isinstance(value, str):
        return value
    return json.dumps(value)


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
