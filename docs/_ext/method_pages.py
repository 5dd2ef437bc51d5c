"""A page for each method, from its class: what it declares, the head of its file, its options."""

import csv
import inspect
from typing import TYPE_CHECKING

from docstrings import as_markdown
from reference_pages import directive
from repository import DOCS, write

from fedlit import methods
from fedlit.cli.methods import Method, card_of, methods_of
from fedlit.methods import Card

if TYPE_CHECKING:
    from sphinx.application import Sphinx

VERDICTS = DOCS / "papers" / "verdicts.csv"  # method,verdict: written with the pages of the papers


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("builder-inited", write_method_pages)
    return {"parallel_read_safe": True}


def write_method_pages(app: "Sphinx") -> None:
    found = methods_of(methods)
    measured = verdicts()
    for method in found:
        write(f"methods/{method.__name__}.md", page(method, measured.get(method.__name__)))
    write("methods/index.md", overview(found, measured))


def verdicts() -> dict[str, str]:
    """What was measured of a method, in a line, where that has been written."""
    if not VERDICTS.exists():
        return {}
    with VERDICTS.open(newline="") as file:
        return {row["method"]: row["verdict"] for row in csv.DictReader(file)}


def card(method: Method) -> Card:
    found = card_of(method)
    assert found is not None  # methods_of
    return found


def overview(found: list[Method], measured: dict[str, str]) -> str:
    lines = [
        "# Methods",
        "",
        "One file for each paper, with the invariant that it keeps bit for bit. `fedlit methods` prints the same.",
        "",
        "| method | when to use it |",
        "|---|---|",
    ]
    for method in found:
        result = f" *Measured:* {measured[method.__name__]}" if method.__name__ in measured else ""
        lines.append(f"| [{method.__name__}]({method.__name__}.md) | {card(method).use}{result} |")
    lines += ["", "```{toctree}", ":hidden:", "", *(method.__name__ for method in found), "```", ""]
    return "\n".join(lines)


def page(method: Method, verdict: str | None) -> str:
    source = method.__module__.replace(".", "/") + ".py"
    head = inspect.getdoc(inspect.getmodule(method)) or ""
    parts = [
        f"# {method.__name__}",
        summary(method),
        facts(card(method)),
        "## When to use it",
        card(method).use,
    ]
    if verdict:
        parts += ["## What we measured", verdict]
    parts += [
        "## What it does",
        as_markdown(head),
        f"Its source: [`{source}`](/source/{source}.md).",
        "## Recipes",
        recipes(card(method)),
        directive(f"fedlit.methods.{method.__name__}", method, "Options", ":no-members:"),
        "Arguments stand under `model.init_args` in a recipe, and are `--model.NAME` on the command line.",
    ]
    return "\n\n".join(parts) + "\n"


def summary(method: Method) -> str:
    """The first paragraph of its docstring."""
    return as_markdown((inspect.getdoc(method) or "").split("\n\n")[0])


def facts(card: Card) -> str:
    paper = f"[{card.paper}]({card.link})" if card.paper else "none: a baseline"
    rows = {
        "Paper": paper,
        "Sends": card.travels,
        "Stays with the client": card.stays,
        "Stages": ", ".join(card.stages),
        "Invariant": card.invariant,
        "Tasks": ", ".join(card.tasks) or "any",
    }
    return "\n".join(["| | |", "|---|---|", *(f"| **{name}** | {text} |" for name, text in rows.items())])


def recipes(card: Card) -> str:
    links = "\n".join(f"- [`{name}`](/source/configs/{name}.md)" for name in card.recipes)
    return f"```bash\nfedlit fit --config {card.recipes[0]}\n```\n\n{links}"
