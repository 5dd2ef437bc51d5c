"""A table as text in rows and columns, whatever it is written as."""

from dataclasses import dataclass


class Best(str):
    """Text that stands in bold."""


class Paper(str):
    """The head of a column that holds the paper's numbers of the column before it."""


@dataclass(frozen=True)
class Grid:
    """A table.

    Attributes:
        title: What it shows.
        head: Names of its columns; the first is empty.
        rows: Text, `Best` in bold; the first of each row is its name.
        note: What a reader must know.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
