"""What was typed for an option, or stands in the environment, looked at before anything takes it apart."""

import os
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import yaml

from fedlit.strict_yaml import LONGEST, OnceLoader, WithoutEnd, parse_yaml

PREFIX = "FEDLIT_"
TAKEN_APART = "[{&*"  # what is written without one of these is a word


def check_values(args: Iterable[str]) -> None:
    """Refuse what would be unreadably long, or written out without end: the parsers behind would not come back."""
    given = [(f"--{option}", value) for option, value in typed_values(args)]
    given += [(name, value) for name, value in os.environ.items() if name.startswith(PREFIX)]
    for option, value in given:
        problem = _problem(value)
        if problem is not None:
            raise ValueError(f"`{option}` must be a value that can be read, but it has {problem}.")


def typed_values(args: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Options without their dashes, and their values, whether typed after a space or after `=`.

    Example:
        >>> list(typed_values(["fit", "--a.b", "1", "--c=2", "--d"]))
        [('', 'fit'), ('a.b', ''), ('a.b', '1'), ('c', '2'), ('d', '')]
    """
    option = ""
    for arg in args:
        if not arg.startswith("-"):
            yield option, arg
            continue
        name, _, value = arg.partition("=")
        option = name.lstrip("-")
        yield option, value


class Variable(NamedTuple):
    """A variable of the environment that is an option of a command."""

    name: str
    option: str
    value: str


def environment_options(command: str) -> list[Variable]:
    """What the environment says for a command: FEDLIT_FIT__TRAINER__NUM_ROUNDS is `trainer.num_rounds` of `fit`.

    A name in capitals is of an option in small letters; another is taken as it is written. A class comes before its
    arguments.
    """
    prefix = f"{PREFIX}{command.upper()}__"
    found = []
    for name, value in os.environ.items():
        if name.startswith(prefix):
            option = name.removeprefix(prefix).replace("__", ".")
            found.append(Variable(name, option.lower() if option.isupper() else option, value))
    return sorted(found, key=lambda variable: (variable.option.count("."), variable.option))


def parsed(value: str) -> Any:
    """What was typed, taken apart; nothing where that cannot be."""
    try:
        return parse_yaml(value, "it")
    except ValueError:
        return None


def _problem(value: str) -> str | None:
    if any("\ud800" <= letter <= "\udfff" for letter in value):  # so Python takes bytes that are no text
        return "bytes that are not UTF-8"
    too_long = None
    if len(value) > LONGEST:
        too_long = f"{len(value)} characters, more than {LONGEST}"
    if not any(sign in value for sign in TAKEN_APART):
        return too_long
    try:
        yaml.load(value, OnceLoader)
    except WithoutEnd as error:
        return error.problem
    except (yaml.YAMLError, ValueError, OverflowError):  # then it is a word, or others say what is wrong with it
        return too_long
    return None
