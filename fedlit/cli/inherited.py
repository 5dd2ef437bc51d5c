"""Arguments that an option has inherited from a class that it no longer has.

Where an option is given another class, arguments of the same name stay as they were. That a method inherits a recipe's
network and optimiser is meant; of other arguments, a notice warns.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from inspect import signature
from pkgutil import resolve_name
from typing import Any

from fedlit.cli.recipes import recipe_content, recipe_files, written_options
from fedlit.cli.values import parsed, typed_values
from fedlit.notices import Notice

METHOD, DATA = "model", "data"


@dataclass
class Named:
    """An option that has a class.

    Attributes:
        kind: The name of the class that it was given last.
        given: Arguments that were given with it.
        inherited: Arguments that were given with an earlier class, and that class.
    """

    kind: str
    given: dict[str, Any] = field(default_factory=dict)
    inherited: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def become(self, kind: str) -> None:
        """Take another class; arguments given before are inherited."""
        if kind == self.kind:
            return
        self.inherited |= {name: (value, self.kind) for name, value in self.given.items()}
        self.given = {}
        self.kind = kind

    def take(self, name: str, value: Any) -> None:
        """Be given an argument."""
        self.given[name] = value
        self.inherited.pop(name, None)


def warn_of_inherited(args: list[str], config: Mapping[str, Any]) -> None:
    """A notice for each of `inherited_arguments`."""
    for line in inherited_arguments(args, config):
        warnings.warn(line, Notice, stacklevel=2)


def inherited_arguments(args: list[str], config: Mapping[str, Any]) -> list[str]:
    """A line for each argument that an option has from another class of a recipe.

    Args:
        args: What was typed, with recipes found.
        config: What came of it.
    """
    options: dict[str, Named] = {}
    for option, value in given_options(args):
        _note(options, option, value)
    lines = []
    for option, named in options.items():
        now = _at(config, option)
        if option == DATA or not isinstance(now, Mapping) or _short(str(now.get("class_path"))) != named.kind:
            continue
        for name, (value, before) in named.inherited.items():
            if before != named.kind and not _is_meant(option, value) and _is_inherited(now, name, value):
                lines.append(
                    f"`{option}` is {named.kind} and inherits `{name}`: {value!r}, which was given to {before}; "
                    f"`--{option}.{name}` changes it."
                )
    return lines


def given_options(args: list[str]) -> Iterator[tuple[str, Any]]:
    """Every option that recipes, the environment or the user give, and its value, in the order in which they count."""
    for file in recipe_files(args):
        yield from written_options(recipe_content(file))
    for option, text in typed_values(args):
        option = option.replace(".init_args", "")
        value = parsed(text)
        if text and option:
            yield option, value
            yield from written_options(value, option)


def _note(options: dict[str, Named], option: str, value: Any) -> None:
    parent, _, name = option.rpartition(".")
    if name == "class_path":
        option, value = parent, {"class_path": value}
    kind = value
    if isinstance(value, Mapping):
        kind = value.get("class_path")
    if isinstance(kind, str) and (isinstance(value, Mapping) or option in options):
        options.setdefault(option, Named(_short(kind))).become(_short(kind))
    elif parent in options:
        options[parent].take(name, value)


def _short(kind: str) -> str:
    return kind.rpartition(".")[2]


def _at(config: Mapping[str, Any], option: str) -> Any:
    """What an option came to; None where there is no such option."""
    found: Any = config
    for name in option.split("."):
        if not isinstance(found, Mapping):
            return None
        inner = {**found, **(found.get("init_args") or {})}
        found = {str(key): value for key, value in inner.items()}.get(name)  # clients are numbers
    return found


def _is_meant(option: str, value: Any) -> bool:
    """Whether inheriting it is expected: a method's network, its optimiser, those of its clients."""
    return option == METHOD and isinstance(value, Mapping | list)


def _is_inherited(now: Mapping[str, Any], name: str, value: Any) -> bool:
    """Whether an argument of a class is still what it was, and not what it would be anyway."""
    found = _at(now, name)
    return found is not None and _is_same(found, value) and not _is_same(_default(now["class_path"], name), value)


def _is_same(found: Any, value: Any) -> bool:
    """Whether a parser made the one of the other: full class names of short ones, tuples of lists, numbers of text."""
    if isinstance(found, Mapping) and isinstance(value, Mapping):
        return _short(str(found.get("class_path"))) == _short(str(value.get("class_path")))
    if isinstance(found, tuple):
        found = list(found)
    if isinstance(found, float) and isinstance(value, str):  # YAML takes 1e-3 for text
        return found == _number(value)
    return bool(found == value)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _default(class_path: str, name: str) -> Any:
    """Of an argument of a class, or of a function; None if it has none."""
    try:
        return signature(resolve_name(class_path)).parameters[name].default
    except (ValueError, ImportError, AttributeError, KeyError, TypeError):
        return None
