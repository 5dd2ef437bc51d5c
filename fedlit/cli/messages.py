"""jsonargparse's messages in one line, with options by their full names and a hint for a slip.

An option of an experiment is written as in a recipe, `trainer.num_rounds`; one that only a command takes has its
dashes: `--ckpt_path`.
"""

import difflib
import re
import sys
from collections.abc import Iterable
from importlib.util import find_spec
from inspect import isclass
from itertools import groupby
from pathlib import Path
from typing import Any

from fedlit.cli.recipes import environment_options, given_options, typed_values, written_options
from fedlit.option_names import SYNONYMS

KEY = re.compile(r'Parser key "([\w.]+)":')
SCAFFOLD = re.compile(r"Problem with given class_path '\S+':|Type \S.*? expects a function or a callable class:")
NOISE = ("Expected a <class 'NoneType'>", "Expected a path but", "Does not validate against any of the Union")
UNKNOWN = re.compile(
    r"Option '([\w.]+)' is not accepted$|Subcommand '\w+' does not accept option '([\w.]+)'"
    r"|unrecognized arguments: (-*[\w.]+)"
)
REQUIRED = "the following arguments are required: "
NO_CLASS = "there is no class "
PLAIN = {
    r"\.* Got value: Namespace.*": "",
    r"\b[Aa]n? <class '(?:\w+\.)*(\w+)'>": r"\1",
    r"a typing.Literal": "one of ",
    r"Expected a dot import path string: (\S+)": rf"{NO_CLASS}'\1'",
    rf"^(Expected (?:int|float|bool)); {NO_CLASS}'(.*)'$": r"\1. Got value: \2",  # a number, or a tensor: `lr` of SGD
}
SAID = rf"Got value: |{NO_CLASS}| is not an option|must be given"  # no need to repeat the value
NOT_ANNOTATED = (
    "; annotate what `__init__` of the method takes: `network: NetworkFactory` (fedlit.methods), "
    "`optimizer: OptimizerCallable` (lightning.pytorch.cli)."
)
UNBUILT = r"got a ready (Namespace|NestedArg|str|dict)\b"
BESIDE = "arguments of a class belong below `init_args`, not beside `class_path`."


def with_hint(message: str, options: Iterable[str]) -> str:
    """A parser's message; where an option does not exist, with the nearest of those that do.

    Example:
        >>> with_hint("Option 'momentun' is not accepted", ["lr", "momentum"])
        '`momentun` is not an option. Did you mean `momentum`?'
        >>> with_hint("unrecognized arguments: --num_rounds=3", ["trainer.num_rounds", "trainer.devices"])
        '`--num_rounds` is not an option. Did you mean `trainer.num_rounds`?'
    """
    unknown = UNKNOWN.match(message)
    if unknown is None:
        return message
    option = next(filter(None, unknown.groups()))
    if option == "class_path":
        return BESIDE
    name = option.lstrip("-")
    if "." in name:
        option = name
    *_, last = name.split(".")
    options = sorted(option for option in options if not option.endswith(".help"))
    near = [*SYNONYMS.get(last, ())]
    if not near or name in near:
        near = [known for known in options if known.endswith(f".{name}")][:1]
        near = near or difflib.get_close_matches(name, options, n=1, cutoff=0.65)
    words = [known if option == name else _typed(known) for known in near]
    return f"`{option}` is not an option." + (f" Did you mean `{'` or `'.join(words)}`?" if near else "")


def _typed(option: str) -> str:
    return option if "." in option else f"--{option}"


def in_one_line(message: str) -> str:
    """The innermost reason of a parser's message, behind the full name of its option.

    Example:
        >>> in_one_line("Parser key \\"trainer.devices\\":\\n  Expected a <class 'int'>. Got value: x")
        '`trainer.devices`: Expected int. Got value: x'
        >>> in_one_line('Parser key "data":\\n Problem with given class_path \\'Data\\':\\n `sized` is not an option.')
        '`data.sized` is not an option.'
    """
    _, *parts = KEY.split(message)
    keys = [key for key, _ in groupby(parts[::2])]
    path = ".".join(keys)
    reason = _reason(parts[-1] if parts else message)
    if re.search(UNBUILT, reason):
        reason = f"{reason.rstrip('.')}{NOT_ANNOTATED}"
    unknown, is_unknown, hint = reason.partition(" is not an option.")
    if is_unknown and path:
        hint = re.sub(r"`(\w+)`", rf"`{path}.\1`", hint)
        return f"`{path}.{unknown.strip('`-')}` is not an option.{hint}"
    if REQUIRED in reason:
        names = reason.partition(REQUIRED)[2].split(", ")
        options = [f"{path}.{name}".lstrip(".") for name in names]
        unbuilt = NOT_ANNOTATED if names == ["params"] else "."
        return ", ".join(f"`{option.removeprefix('fit.')}`" for option in options) + f" must be given{unbuilt}"
    return (f"`{path}`: " if path else "") + reason + _nearest_class(reason)


def _reason(text: str) -> str:
    """What the types say that an option may have, and what it was given; other texts as they are."""
    text, is_of_types, given = SCAFFOLD.sub("", text).partition("Given value type:")
    _, has_errors, errors = text.rpartition("Errors:")
    reasons = [" ".join(part.split()) for part in re.split(r"(?:^|\n)\s*- ", errors)]
    reasons = [reason for reason in reasons if reason and not reason.startswith(NOISE)]
    reasons = [reason for reason in reasons if not reason.startswith("Expected a")] or reasons  # of one of the types
    reason = "; ".join(dict.fromkeys(reasons))
    for pattern, words in PLAIN.items():
        reason = re.sub(pattern, words, reason)
    value = re.search(r"Given value: (?!Namespace|NestedArg)(.*)", given)
    if is_of_types and has_errors and value is not None and not re.search(SAID, reason):
        reason += f". Got value: {value[1]}"
    return reason


def _nearest_class(reason: str) -> str:
    """A hint where a class or its module is not found."""
    attribute = re.search(r"module '([\w.]+)' has no attribute '(\w+)'", reason)
    module = re.search(r"No module named '([\w.]+)'", reason)
    if attribute is not None:
        file = Path(f"{attribute[1]}.py")
        if file.is_file() and find_spec(attribute[1]).origin != str(file.resolve()):  # type: ignore[union-attr]
            return f". {file} is hidden by an installed module of the same name; rename it."
        near = _near(attribute[2], vars(sys.modules[attribute[1]]))
        near = [f"{attribute[1]}.{name}" for name in near]
    elif module is not None:
        near = _near(module[1], [path.stem for path in Path().glob("*.py")])
    elif NO_CLASS in reason:
        near = _near(reason.partition(NO_CLASS)[2].strip("'"), _classes())
    else:
        near = []
    return f". Did you mean `{near[0]}`?" if near else ""


def _near(name: str, known: Iterable[str]) -> list[str]:
    by_lower = {text.lower(): text for text in known}
    found = difflib.get_close_matches(name.lower(), list(by_lower), n=1, cutoff=0.65)
    return [by_lower[text] for text in found]


def _classes() -> set[str]:
    """Names of classes that options take: fedlit's, and torch's optimisers and schedules."""
    places = ("fedlit.", "torch.optim")
    modules = [module for name, module in sys.modules.items() if name.startswith(places)]
    return {name for module in modules for name, value in vars(module).items() if isclass(value)}


def with_full_names(message: str, config: Any, args: list[str]) -> str:
    """An error of a constructor: options that it names by their last word get their full names.

    Args:
        message: Of the error.
        config: Every option of the command, with defaults.
        args: What was typed, with recipes found.
    """
    typed = {option.replace(".init_args", "") for option, _ in typed_values(args)}
    given = {option for option, _ in given_options(args)}
    known = {option for option, _ in written_options(config)}

    def full(name: re.Match[str]) -> str:
        for options in (typed, given, known):
            found = sorted(option for option in options if option.endswith(f".{name[1]}"))
            if found:
                return f"`{'` or `'.join(found)}`"
        return name[0]

    return re.sub(r"`(\w+)`", full, message)


def with_variables(message: str, args: list[str]) -> str:
    """The message, and which variables of the environment gave an option that it names."""
    typed = [option for option, _ in typed_values(args)]
    names = [
        variable.name
        for variable in (environment_options(args[0]) if args else [])
        if f"`{variable.option.replace('.init_args', '')}`" in message and typed.count(variable.option) < 2
    ]
    return f"{message} ({', '.join(names)} of the environment)" if names else message
