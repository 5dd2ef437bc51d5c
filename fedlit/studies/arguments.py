"""A cell of a study as one would type it: options by name become arguments of `fedlit fit`."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

GROUPS = ("trainer", "model", "data")  # whose options may stand nested, as in a recipe


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
