"""`fedlit methods`: the table of methods, read from their files without importing torch, or one method in detail."""

import ast
import inspect
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

import fedlit
from fedlit.cli.refusal import OneLineParser, nearest, refuse
from fedlit.cli.tables import wrapped

if TYPE_CHECKING:
    from fedlit.methods import Card, FederatedModule

Method: TypeAlias = "type[FederatedModule]"
EXAMPLES = """\
examples:
  fedlit methods                     all of fedlit's
  fedlit methods FML                 one, with its equations and options
  fedlit methods my_methods          those of a module of yours that declare a `card`
  fedlit methods my_methods.OwnBias  one of yours
"""
COLUMNS = ("paper", "travels", "stays", "stages", "recipes", "invariant")
FOLDER = Path(fedlit.__file__).with_name("methods")


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
        print(table(own_cards()))
        return
    found = find(name)
    if isinstance(found, ModuleType):
        print(table({method.__name__: asdict(_card(method)) for method in methods_of(found)}))
    else:
        print(describe(found))


def own_cards() -> dict[str, dict[str, Any]]:
    """The cards of fedlit's methods by the methods' names, as their files have them."""
    found: dict[str, dict[str, Any]] = {}
    defaults: dict[str, Any] = {}
    for path in sorted(FOLDER.glob("*.py")):
        classes = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.ClassDef)]
        for kind in classes:
            for node in kind.body:
                if kind.name == "Card" and isinstance(node, ast.AnnAssign) and node.value is not None:
                    defaults[ast.unparse(node.target)] = ast.literal_eval(node.value)
                elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "card":
                    keywords = getattr(node.value, "keywords", [])
                    found[kind.name] = {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords}
    return {name: {**defaults, **card} for name, card in found.items()}


def methods_of(module: ModuleType) -> list[Method]:
    """The methods in a module that declare a card of their own, in the module's order."""
    from fedlit.methods import FederatedModule

    kinds = [kind for kind in vars(module).values() if inspect.isclass(kind) and issubclass(kind, FederatedModule)]
    return [kind for kind in dict.fromkeys(kinds) if card_of(kind)]


def card_of(method: Method) -> "Card | None":
    """What it declares itself: a parent's card is of the parent."""
    return vars(method).get("card")


def _card(method: Method) -> "Card":
    card = card_of(method)
    assert card is not None  # methods_of
    return card


def find(name: str) -> "type[FederatedModule] | ModuleType":
    """A method of fedlit by its name, in any case, or what a user's path leads to."""
    own = own_cards()
    by_lower = {known.lower(): known for known in own}
    path, _, last = name.rpartition(".")
    if name.lower() in by_lower:
        path, last = "fedlit.methods", by_lower[name.lower()]
    try:
        found = getattr(import_module(path), last) if path else import_module(name)
    except (ImportError, AttributeError) as error:
        hint = nearest(name, own) or f" There are {', '.join(own)}; one of yours is given as module.Class."
        is_missing = isinstance(error, ModuleNotFoundError) and name.startswith(str(error.name))
        problem = "" if is_missing else f": {error}"
        refuse(f"fedlit methods: there is no method {name!r}{problem}.{hint}")
    from fedlit.methods import FederatedModule

    if isinstance(found, ModuleType) and methods_of(found):
        return found
    if inspect.isclass(found) and issubclass(found, FederatedModule):
        return found
    refuse(f"fedlit methods: {name!r} is no method, nor a module with one that declares a `card`.")


def table(cards: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a method."""
    rows = [["method", *COLUMNS]]
    for name, card in cards.items():
        rows.append([name, *(_cell(column, card[column]) for column in COLUMNS)])
    return wrapped(rows)


def _cell(field: str, value: Any) -> str:
    if field == "paper" and value is None:
        return "(baseline)"
    return ", ".join(value) if isinstance(value, tuple) else str(value or "")


def describe(method: Method) -> str:
    """A method in detail: its card, the head of its file with the equations, and its options."""
    first_line = (inspect.getdoc(method) or "no description.").splitlines()[0]
    parts = [f"{method.__module__}.{method.__name__}: {first_line}"]
    card = card_of(method)
    if card is not None:
        fields = {name: _cell(name, value) for name, value in {"paper": "", "link": "", **asdict(card)}.items()}
        parts.append("\n".join(f"{name:10} {text}" for name, text in fields.items() if text))
    parts.append(inspect.getdoc(inspect.getmodule(method)) or "")
    lines = ["Options:"]
    for option in options_of(method):
        default = "" if option.default is None else f" = {option.default}"
        lines.append(f"  --model.{option.name}{default}")
        if option.text:
            lines.append(f"      {option.text}")
    parts.append("\n".join(lines))
    return "\n\n".join(filter(None, parts))


def options_of(called: Callable[..., object]) -> list[Option]:
    """Arguments of a constructor or function, with their defaults and what the docstring says of them."""
    from docstring_parser import parse

    documented = {entry.arg_name: entry.description for entry in parse(inspect.getdoc(called) or "").params}
    found = []
    for name, parameter in inspect.signature(called).parameters.items():
        default = None if parameter.default is parameter.empty else repr(parameter.default)
        text = " ".join((documented.get(name) or "").split())
        found.append(Option(name, default, text))
    return found
