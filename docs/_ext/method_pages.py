"""A page for each method, from its class: what it declares, the head of its file, its options."""

import csv
import inspect
import re
from typing import TYPE_CHECKING

from docstrings import as_markdown
from reference_pages import directive
from repository import DOCS, ROOT, relinked, write

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
    pages = {f"methods/{method.__name__}.md": page(method, measured.get(method.__name__)) for method in found}
    write("methods", {**pages, "methods/index.md": overview(found)})


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


def overview(found: list[Method]) -> str:
    """The tables of the README, in its groups, with links to the pages of methods."""
    readme = (ROOT / "README.md").read_text()
    tables = readme.split("## Methods\n")[1].split("\n## ")[0]
    for method in found:
        name = method.__name__
        tables = re.sub(rf"^\| (\[{name}\]\([^)]*\)|{name}) \|", f"| [{name}]({name}.md) |", tables, flags=re.MULTILINE)
    pages = "\n".join(method.__name__ for method in found)
    return f"# Methods\n{relinked(tables, ROOT)}\n```{{toctree}}\n:hidden:\n\n{pages}\n```\n"


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
        parts += ["## Results", results(verdict)]
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


def results(verdict: str) -> str:
    """The verdict as a list; numbers of the leaderboard are one sentence."""
    claims, _, controls = verdict.partition(". Controls: ")
    if ";" not in verdict:
        return f"{verdict[0].upper()}{verdict[1:]}. Intervals and other measures: [leaderboard](/leaderboard.md)."
    lines = [f"- {claim}" for claim in claims.split("; ")]
    if controls:
        lines += ["", "Controls:", "", *(f"- {control}" for control in controls.split("; "))]
    return "\n".join(["Claims of the paper, over settings and seeds ([papers](/papers.md)):", "", *lines])


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
