"""Docstrings as Markdown: they are written in words, with a little of reStructuredText for equations."""

import ast
import inspect
import re
from textwrap import dedent
from typing import Literal, get_args, get_origin, get_type_hints

from fedlit.cli.methods import options_of

SECTIONS = r"^(Args|Example|Attributes|Returns|Raises|Yields):\n"
MATH = re.compile(r"^( *)\.\. math:: *(.*(?:\n(?:\1 +\S.*| *(?=\n\1 +\S)))*)", re.MULTILINE)
URL = re.compile(r"(?<![(<\[`])https?://[^\s)>]*[^\s)>.,;:]")


def as_markdown(text: str) -> str:
    """A text with its equations, code and links in Markdown."""
    text = text.replace("``", "`")
    text = MATH.sub(_equation, text)
    text = re.sub(r":math:`([^`]+)`", r"{math}`\1`", text)
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return URL.sub(r"<\g<0>>", text)


def _equation(found: re.Match[str]) -> str:
    body = dedent(found[2]).strip()
    return f"\n```{{math}}\n{body}\n```\n"


def description(thing: object) -> str:
    """What is said of a class or function before its arguments."""
    text = inspect.getdoc(thing) or ""
    return as_markdown(re.split(SECTIONS, text, maxsplit=1, flags=re.MULTILINE)[0].strip())


def example(thing: object) -> str:
    """Its example, which is run by the tests, as a block; nothing if there is none."""
    found = re.search(r"^Example:\n((?: +.*\n?|\n)+)", inspect.getdoc(thing) or "", re.MULTILINE)
    if found is None:
        return ""
    return f"```pycon\n{dedent(found[1]).strip()}\n```\n"


def options(called: type | object, prefix: str = "") -> str:
    """Arguments as a list of definitions: name, type and default, and what is said of them."""
    kinds = annotations(called)
    lines = []
    for option in options_of(called):
        default = "" if option.default is None else f" = {option.default}"
        lines.append(f"`{prefix}{option.name}`: `{kinds.get(option.name, '')}{default}`".replace(": ``", ""))
        lines.append(f": {as_markdown(option.text) or '(see its type)'}\n")
    return "\n".join(lines)


def annotations(called: type | object) -> dict[str, str]:
    """Types as they are written; of a choice that has a name, what may be chosen."""
    function = called.__init__ if inspect.isclass(called) else called
    try:
        tree = ast.parse(dedent(inspect.getsource(function)))
    except (OSError, TypeError):  # of a class without a constructor of its own
        return {}
    written = tree.body[0].args
    found = {}
    hints = get_type_hints(function)
    for argument in [*written.posonlyargs, *written.args, *written.kwonlyargs]:
        if argument.annotation is None:
            continue
        found[argument.arg] = ast.unparse(argument.annotation).replace("'", '"')
        if get_origin(hints[argument.arg]) is Literal:
            found[argument.arg] = " | ".join(f'"{choice}"' for choice in get_args(hints[argument.arg]))
    return found
