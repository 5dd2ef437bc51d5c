"""`fedlit methods`: the table of methods, or one method in detail."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

from docstring_parser import parse

from fedlit import methods
from fedlit.cli.refusal import OneLineParser, nearest, refuse
from fedlit.cli.tables import wrapped
from fedlit.methods import Card, FederatedModule

EXAMPLES = """\
examples:
  fedlit methods                     all of fedlit's
  fedlit methods FML                 one, with its equations and options
  fedlit methods my_methods          those of a module of yours that declare a `card`
  fedlit methods my_methods.OwnBias  one of yours
"""
HEADER = ["method", "paper", "travels", "stays", "stages", "recipe", "invariant"]
Method = type[FederatedModule]


@dataclass(frozen=True)
class Option:
    """An argument: its default as one would write it, None if it is required, and its description."""

    name: str
    default: str | None
    text: str


def main(args: list[str]) -> None:
    """List the methods, or describe one: paper, what travels, what stays, stages, recipe, invariant."""
    parser = OneLineParser("fedlit methods", str(main.__doc__), epilog=EXAMPLES)
    parser.add_argument("name", nargs="?", metavar="NAME", help="A method, or a module of yours.")
    name = parser.parse_args(args).name
    if name is None:
        print(table(methods_of(methods)))
        return
    found = find(name)
    if isinstance(found, ModuleType):
        print(table(methods_of(found)))
    else:
        print(describe(found))


def methods_of(module: ModuleType) -> list[Method]:
    """The methods that stand in a module and declare a card of their own, in the order in which it names them."""
    found = []
    for kind in vars(module).values():
        if inspect.isclass(kind) and issubclass(kind, FederatedModule) and card_of(kind) and kind not in found:
            found.append(kind)
    return found


def card_of(method: Method) -> Card | None:
    """What it declares itself: a parent's card is of the parent."""
    return vars(method).get("card")


def find(name: str) -> Method | ModuleType:
    """A method of fedlit by its name, in any case, or what a user's path leads to."""
    own = {method.__name__: method for method in methods_of(methods)}
    by_lower = {known.lower(): method for known, method in own.items()}
    if name.lower() in by_lower:
        return by_lower[name.lower()]
    path, _, last = name.rpartition(".")
    try:
        found = getattr(import_module(path), last) if path else import_module(name)
    except (ImportError, AttributeError) as error:
        hint = nearest(name, own) or f" There are {', '.join(own)}; one of yours is given as module.Class."
        problem = "" if _is_missing(error, name) else f": {error}"
        refuse(f"fedlit methods: there is no method {name!r}{problem}.{hint}")
    if isinstance(found, ModuleType) and methods_of(found):
        return found
    if inspect.isclass(found) and issubclass(found, FederatedModule):
        return found
    refuse(f"fedlit methods: {name!r} is no method, nor a module with one that declares a `card`.")


def _is_missing(error: Exception, name: str) -> bool:
    """Whether it is just the user's name that leads nowhere; else something is wrong behind it."""
    return isinstance(error, ModuleNotFoundError) and error.name is not None and name.startswith(error.name)


def table(found: list[Method]) -> str:
    """One row a method."""
    rows = [HEADER]
    for method in found:
        card = card_of(method)
        assert card is not None  # methods_of
        recipe = card.recipes[0] if card.recipes else ""
        stages = ", ".join(card.stages)
        paper = card.paper or "(baseline)"
        rows.append([method.__name__, paper, card.travels, card.stays, stages, recipe, card.invariant])
    return wrapped(rows)


def describe(method: Method) -> str:
    """A method in detail: its card, the head of its file with the equations, and its options."""
    parts = [f"{method.__module__}.{method.__name__}: {_first_line(method)}"]
    card = card_of(method)
    if card is not None:
        parts.append(_card_lines(card))
    head = inspect.getdoc(inspect.getmodule(method))
    if head:
        parts.append(head)
    parts.append("Options:\n" + "\n".join(_option_lines(method)))
    return "\n\n".join(parts)


def _first_line(method: Method) -> str:
    lines = (inspect.getdoc(method) or "").splitlines()
    return lines[0] if lines else "no description."


def _card_lines(card: Card) -> str:
    paper = card.paper or "(baseline)"
    if card.link:
        paper += f", {card.link}"
    lines = {
        "paper": paper,
        "travels": card.travels,
        "stays": card.stays,
        "stages": ", ".join(card.stages),
        "recipes": ", ".join(card.recipes) or "none",
        "invariant": card.invariant,
        "tasks": ", ".join(card.tasks) or "any",
    }
    if card.use:
        lines["use"] = card.use
    return "\n".join(f"{name:10} {text}" for name, text in lines.items())


def options_of(called: Callable[..., object]) -> list[Option]:
    """Arguments of a constructor or function, with their defaults and what the docstring says of them."""
    documented = {entry.arg_name: entry.description for entry in parse(inspect.getdoc(called) or "").params}
    found = []
    for name, parameter in inspect.signature(called).parameters.items():
        default = None if parameter.default is parameter.empty else repr(parameter.default)
        text = " ".join((documented.get(name) or "").split())
        found.append(Option(name, default, text))
    return found


def _option_lines(method: Method) -> list[str]:
    lines = []
    for option in options_of(method):
        default = "" if option.default is None else f" = {option.default}"
        lines.append(f"  --model.{option.name}{default}")
        if option.text:
            lines.append(f"      {option.text}")
    return lines
