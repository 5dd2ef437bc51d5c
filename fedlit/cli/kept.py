"""Arguments that an option has kept from a class that it no longer has.

Where an option is given another class, arguments of the same name stay as they were. That is meant for a method, which
keeps a recipe's network and optimiser; of a partition or an optimiser, one should know.
"""

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from fedlit.cli.recipes import recipe_content, recipe_files, written_options
from fedlit.cli.values import parsed, typed_values
from fedlit.notices import Notice

MEANT = ("model", "data")  # one method or one data module in place of another


@dataclass
class Named:
    """An option that has a class.

    Attributes:
        kind: The name of the class that it was given last.
        given: Arguments that were given with it.
        kept: Arguments that were given with a class before it, and which that was.
    """

    kind: str
    given: dict[str, Any] = field(default_factory=dict)
    kept: dict[str, tuple[Any, str]] = field(default_factory=dict)

    def become(self, kind: str) -> None:
        """Take another class; arguments that were given before are kept."""
        if kind == self.kind:
            return
        self.kept |= {name: (value, self.kind) for name, value in self.given.items()}
        self.given = {}
        self.kind = kind

    def take(self, name: str, value: Any) -> None:
        """Be given an argument."""
        self.given[name] = value
        self.kept.pop(name, None)


def tell_kept(args: list[str], config: Mapping[str, Any]) -> None:
    """A notice for each of `kept_arguments`."""
    for line in kept_arguments(args, config):
        warnings.warn(line, Notice, stacklevel=2)


def kept_arguments(args: list[str], config: Mapping[str, Any]) -> list[str]:
    """A line for each argument that an option has from another class of a recipe.

    Args:
        args: What was typed, with recipes found.
        config: What came of it.
    """
    options: dict[str, Named] = {}
    for option, value in _given(args):
        _note(options, option, value)
    lines = []
    for option, named in options.items():
        for name, (value, before) in named.kept.items():
            if option not in MEANT and _is_still(config, f"{option}.{name}", value):
                lines.append(
                    f"`{option}` is {named.kind} and keeps `{name}`: {value!r}, which was given to {before}; "
                    f"`--{option}.{name}` says otherwise."
                )
    return lines


def _given(args: list[str]) -> Iterator[tuple[str, Any]]:
    """Every option and its value, in the order in which they count."""
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


def _is_still(config: Mapping[str, Any], option: str, value: Any) -> bool:
    """Whether the option came to that value, or to that class."""
    found: Any = config
    for name in option.split("."):
        if not isinstance(found, Mapping):
            return False
        inner = found.get("init_args") or {}
        found = found[name] if name in found else inner.get(name)
    if isinstance(found, Mapping) and isinstance(value, Mapping):
        return _short(str(found.get("class_path"))) == _short(str(value.get("class_path")))
    return found is not None and found == value
