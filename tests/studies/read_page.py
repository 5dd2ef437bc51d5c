"""Reads a page as a browser would: tables as text, charts as data, and whatever it would ask a network for."""

import json
from html.parser import HTMLParser


class PageReader(HTMLParser):
    """Tables (rows of cells, bold ones apart), charts by the title of their figure, text, and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.bold: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.titles: dict[int, str] = {}
        self.text = ""
        self._open: list[str] = []
        self._figure: int | None = None
        self._data = ""
        self.feed(text)
        self.charts: list[dict] = json.loads(self._data)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href")]
        if tag in ("meta", "wbr"):
            return
        self._open.append("data" if given.get("id") == "charts" else tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag == "figure":
            self._figure = int(given["data-chart"])
            self.titles[self._figure] = ""

    def handle_endtag(self, tag):
        self._open.pop()

    def handle_data(self, data):
        where = self._open[-1] if self._open else ""
        if where == "data":
            self._data += data
            return
        if where in ("script", "style"):
            return
        self.text += data
        if where == "figcaption":
            self.titles[self._figure] += data
        if where == "strong":
            self.bold.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data

    def table(self, *head: str) -> dict[str, list[str]]:
        """The table with a head that begins so: by the first cell of a row, the others."""
        for table in self.tables:
            if table[0][: len(head)] == list(head):
                return {row[0]: row[1:] for row in table[1:]}
        raise AssertionError(f"no table with {head} in {[table[0] for table in self.tables]}")

    def charts_of(self, kind: str, **given) -> list[dict]:
        """The charts of a kind, and with some entries."""
        wanted = {"kind": kind, **given}
        return [chart for chart in self.charts if all(chart.get(key) == value for key, value in wanted.items())]
