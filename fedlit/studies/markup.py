"""HTML in which every text of a user is escaped: only `Markup` stands as it is."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from math import isfinite
from typing import Any

from fedlit.studies.wording import Bold, Grid, Paper

ASSETS = files("fedlit.studies") / "assets"


class Markup(str):
    """Text that is HTML already."""


def tag(name: str, *children: str, **attributes: str) -> Markup:
    """An element; its children are escaped unless they are `Markup`. `class_` is the attribute class.

    Example:
        >>> tag("p", "a < b ", tag("b", "&"), class_="note")
        '<p class="note">a &lt; b <b>&amp;</b></p>'
    """
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{escape(value)}"' for key, value in attributes.items())
    return Markup(f"<{name}{given}>{join(children)}</{name}>")


def join(children: Iterable[str]) -> Markup:
    """Children one after the other."""
    parts = []
    for child in children:
        parts.append(child if isinstance(child, Markup) else escape(child))
    return Markup("".join(parts))


def grid_table(grid: Grid) -> Markup:
    """A grid as a table that scrolls in its box, with its note."""
    head = [tag("th", name, **_class(name)) for name in grid.head]
    body = []
    for row in grid.rows:
        cells = [tag("th", breakable(row[0]))]
        for name, text in zip(grid.head[1:], row[1:], strict=True):
            shown = tag("strong", text) if isinstance(text, Bold) else text
            cells.append(tag("td", shown, **_class(name)))
        body.append(tag("tr", *cells))
    table = tag("table", tag("thead", tag("tr", *head)), tag("tbody", *body))
    note = tag("p", grid.note, class_="note") if grid.note else Markup("")
    return join([tag("div", table, class_="box"), note])


def words_table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table of words, which may be long."""
    lines = []
    for row in rows:
        cells = [tag("td", breakable(text)) for text in row[1:]]
        lines.append(tag("tr", tag("th", breakable(row[0])), *cells))
    top = tag("thead", tag("tr", *[tag("th", name) for name in head]))
    return tag("div", tag("table", top, tag("tbody", *lines), class_="words"), class_="box")


def breakable(text: str) -> Markup:
    """A name that may be broken after a dot, an underscore or a slash, but no number: a phone is narrow.

    Example:
        >>> breakable("model.lr<0.1>")
        'model.<wbr>lr&lt;0.1&gt;'
    """
    return Markup(re.sub(r"([._/])(?!\d)", r"\1<wbr>", escape(text)))


def details(summary: str, *children: str) -> Markup:
    """What is folded up at first."""
    return tag("details", tag("summary", summary), *children)


def _class(name: str) -> dict[str, str]:
    return {"class_": "paper"} if isinstance(name, Paper) else {}


class Page:
    """A page that stands for itself: text, tables, and charts that are drawn from data in the page.

    Args:
        title: Its head line.
        lead: What stands below it.
    """

    def __init__(self, title: str, lead: Iterable[str]) -> None:
        self.title = title
        self.lead = list(lead)
        self.sections: list[Markup] = []
        self.charts: list[Mapping[str, Any]] = []

    def section(self, title: str, *children: str, warning: bool = False) -> None:
        """Another section, if there is anything in it."""
        if not any(children):
            return
        kind = {"class_": "warning"} if warning else {}
        self.sections.append(tag("section", tag("h2", title), *children, **kind))

    def figure(self, title: str, chart: Mapping[str, Any]) -> Markup:
        """A place where a chart is drawn."""
        self.charts.append(chart)
        return tag("figure", tag("figcaption", title), data_chart=str(len(self.charts) - 1))

    def legend(self, names: Sequence[str], group: str) -> Markup:
        """What lines are called in all charts of a group; a click hides one."""
        entries = [{"name": name, "style": style} for style, name in enumerate(names)]
        self.charts.append({"kind": "legend", "names": entries, "group": group})
        return tag("div", class_="legend", data_legend=str(len(self.charts) - 1))

    def __str__(self) -> str:
        """The whole page."""
        style = Markup((ASSETS / "page.css").read_text(encoding="utf-8"))
        script = Markup((ASSETS / "page.js").read_text(encoding="utf-8"))
        head = join(
            [
                Markup('<meta charset="utf-8">'),
                Markup('<meta name="viewport" content="width=device-width, initial-scale=1">'),
                tag("title", self.title),
                tag("style", style),
            ]
        )
        without = tag("noscript", tag("p", "Charts need JavaScript; all numbers stand in the tables."))
        header = tag("header", tag("h1", self.title), *[tag("p", text) for text in self.lead], without)
        footer = tag("footer", "Made by fedlit.")
        data = tag("script", data_text(self.charts), type="application/json", id="charts")
        body = tag("body", header, tag("main", *self.sections), footer, data, tag("script", script))
        return f"<!DOCTYPE html>\n{tag('html', tag('head', head), body, lang='en')}\n"


def data_text(content: Any) -> Markup:
    """JSON that can stand in a page: no text of a user can end its element; nan is null.

    Example:
        >>> data_text({"name": "</script>", "y": [0.1234567, float("nan")]})
        '{"name":"\\\\u003c/script>","y":[0.123457,null]}'
    """
    text = json.dumps(_plain(content), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _plain(value: Any) -> Any:
    """Numbers to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}") if isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value
