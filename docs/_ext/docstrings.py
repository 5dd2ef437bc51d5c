"""Docstrings as Markdown and as reStructuredText: they are written in words, with a little of either."""

import re
from textwrap import dedent

from equations import as_latex, is_equation

MATH = re.compile(r"^( *)\.\. math:: *(.*(?:\n(?:\1 +\S.*| *(?=\n\1 +\S)))*)", re.MULTILINE)
BLOCK = re.compile(r"(?<=:\n\n)((?: {4,}\S.*\n|\n(?= {4}))+)", re.MULTILINE)
URL = re.compile(r"(?<![(<\[`])https?://[^\s)>]*[^\s)>.,;:]")
CODE = re.compile(r":[\w:]+:`[^`]*`|``.*?``|`([^`\n]+)`(?!_)", re.DOTALL)
"""Roles and double backticks, which stay, or code in one backtick."""


def as_markdown(text: str) -> str:
    """A text with its equations, code and links in Markdown."""
    text = text.replace("``", "`")
    text = MATH.sub(lambda found: _equation(dedent(found[2]).strip()), text)
    text = BLOCK.sub(lambda found: _block(found[1]), text + "\n").rstrip("\n")
    text = re.sub(r":math:`([^`]+)`", r"{math}`\1`", text)
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", text)
    return URL.sub(r"<\g<0>>", text)


def _equation(latex: str) -> str:
    return f"\n```{{math}}\n{latex}\n```\n"


def _block(text: str) -> str:
    """An indented block: an equation is typeset, anything else stays code."""
    return _equation(as_latex(text)) + "\n" if is_equation(text) else text


def as_rst(text: str, links: dict[str, str]) -> str:
    """A docstring as Sphinx reads it: code in double backticks, names that have an entry as links to it."""

    def code(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        path = links.get(found[1])
        return f"``{found[1]}``" if path is None else f":py:obj:`{found[1]} <{path}>`"

    return CODE.sub(code, text)


def in_order(text: str, names: list[str]) -> str:
    """A docstring with its arguments in the order of the signature: those of a base class may stand before its own."""
    found = re.search(r"^Args:\n((?: {4}.*\n?)+)", text, re.MULTILINE)
    if found is None:
        return text
    entries = re.split(r"^(?= {4}\w)", found[1].rstrip("\n") + "\n", flags=re.MULTILINE)[1:]
    places = {name: place for place, name in enumerate(names)}
    entries.sort(key=lambda entry: places.get(entry.split(":")[0].strip(), len(places)))
    return text[: found.start(1)] + "".join(entries) + text[found.end(1) :]
