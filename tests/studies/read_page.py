"""Reads a page as a browser would: tables as text, pictures, and whatever it would ask a network for."""

from html.parser import HTMLParser


class PageReader(HTMLParser):
    """Tables (rows of cells, bold ones apart), titles of pictures, text, and addresses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tables: list[list[list[str]]] = []
        self.bold: list[str] = []
        self.addresses: list[str] = []
        self.tags: list[str] = []
        self.pictures: list[str] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.tags.append(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href") and not value.startswith("data:")]
        if tag == "img":
            self.pictures.append(given["alt"])
        if tag in ("meta", "img"):
            return
        self._open.append(tag)
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if not self._open or self._open[-1] == "style":
            return
        self.text += data
        if self._open[-1] == "strong":
            self.bold.append(data)
        if {"td", "th"} & set(self._open):
            self.tables[-1][-1][-1] += data

    def table(self, *head: str) -> dict[str, list[str]]:
        """The table with a head that begins so: by the first cell of a row, the others."""
        for table in self.tables:
            if table[0][: len(head)] == list(head):
                return {row[0]: row[1:] for row in table[1:]}
        raise AssertionError(f"no table with {head} in {[table[0] for table in self.tables]}")
