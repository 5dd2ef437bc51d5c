"""Options of which one takes the place of another: what is typed wins over what a recipe or the environment says."""

import warnings
from inspect import signature
from typing import Any

from fedlit.cli.method_class import method_of
from fedlit.cli.recipes import recipe_content, recipe_files, written_options
from fedlit.cli.values import environment_options, parsed, typed_values
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

    What the environment says takes back what recipes say likewise. Two that are typed, two of the environment and two
    of recipes are left to whoever refuses them.
    """
    variables = environment_options(args[0]) if args else []
    words = [f"--{variable.option}={variable.value}" for variable in variables]  # as they stand among the arguments
    typed = {option: parsed(value) for option, value in typed_values(arg for arg in args if arg not in words) if value}
    said = {variable.option: parsed(variable.value) for variable in variables if variable.option not in typed}
    names = {variable.option: variable.name for variable in variables}
    taken_back: list[str] = []
    for option, others in TAKES_THE_PLACE.items():
        by_whom = typed if typed.get(option) is not None else said
        if by_whom.get(option) is None or others.keys() & {*by_whom, *typed}:
            continue
        found = {other: _set(other, args) for other in others if _is_option(other, args)}
        if by_whom is typed:
            found |= {other: (names[other], said[other]) for other in found if other in said}
        in_its_way = [other for other, (_, value) in found.items() if value not in (None, others[other])]
        if not found or len(in_its_way) < len(found):
            continue
        told_by = f"--{option}" if by_whom is typed else names[option]
        for other, (place, value) in found.items():
            told = f"`{told_by}` takes the place of `{other}`, which is {_short(value)} in {place}."
            warnings.warn(told, Notice, stacklevel=2)
            taken_back += [f"--{other}", others[other] or "null"]
    return [*args, *taken_back]


def _set(option: str, args: list[str]) -> tuple[str, Any]:
    """The last recipe that sets an option, and to what; else None."""
    for recipe in reversed(recipe_files(args)):
        written = dict(written_options(recipe_content(recipe)))
        if option in written:
            return recipe, written[option]
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
