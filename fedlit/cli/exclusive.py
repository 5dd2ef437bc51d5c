"""Options of which one takes the place of another: what is typed wins over what a recipe or the environment says."""

import os
import warnings
from inspect import signature
from typing import Any

from fedlit.cli.method_class import method_of
from fedlit.cli.recipes import recipe_content, recipe_files, written_options
from fedlit.cli.values import PREFIX, parsed, typed_values
from fedlit.notices import Notice

TAKES_THE_PLACE: dict[str, dict[str, str | None]] = {  # of what, and the value by which that does not hold
    "trainer.local_epochs": {"trainer.local_steps": None},
    "trainer.local_steps": {"trainer.local_epochs": None},
    "data.dataset": {"data.train_dataset": None, "data.test_dataset": None},
    "data.train_dataset": {"data.dataset": "fashion_sample"},
    "model.network": {"model.personal": None, "model.meme": None},
}


def with_typed_first(args: list[str]) -> list[str]:
    """The arguments, and those that take back what cannot hold beside what was typed; a line tells of each.

    Two that are typed, and two of recipes, are left to whoever refuses them.
    """
    typed = {option: parsed(value) for option, value in typed_values(args) if value}
    taken_back: list[str] = []
    for option, others in TAKES_THE_PLACE.items():
        if typed.get(option) is None or others.keys() & typed.keys():
            continue
        found = {other: _set(other, args) for other in others if _is_option(other, args)}
        in_its_way = [other for other, (_, value) in found.items() if value not in (None, others[other])]
        if not found or len(in_its_way) < len(found):
            continue
        for other, (place, value) in found.items():
            told = f"`--{option}` takes the place of `{other}`, which is {_short(value)} in {place}."
            warnings.warn(told, Notice, stacklevel=2)
            taken_back += [f"--{other}", others[other] or "null"]
    return [*args, *taken_back]


def _set(option: str, args: list[str]) -> tuple[str, Any]:
    """Where an option was set, and to what, by the last recipe that does, or else by the environment; else to None."""
    for recipe in reversed(recipe_files(args)):
        written = dict(written_options(recipe_content(recipe)))
        if option in written:
            return recipe, written[option]
    variable = f"{PREFIX}{args[0]}__{option.replace('.', '__')}".upper() if args else ""
    if variable in os.environ:
        return variable, parsed(os.environ[variable])
    return "", None


def _is_option(option: str, args: list[str]) -> bool:
    """Whether there is such an option: methods differ in theirs."""
    group, _, name = option.partition(".")
    method = method_of(args)
    return group != "model" or (method is not None and name in signature(method).parameters)


def _short(value: Any) -> str:
    """A class by its name."""
    if isinstance(value, dict):
        value = value.get("class_path", value)
    return str(value)
