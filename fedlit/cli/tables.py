"""Tables for a terminal: cells are wrapped until a row fits."""

import shutil
from itertools import zip_longest
from textwrap import wrap

GAP = "  "
WIDE = 160  # columns where there is no terminal


def wrapped(rows: list[list[str]], width: int | None = None) -> str:
    """Rows of cells, the first being the header, in at most `width` columns where the longest words allow it.

    Example:
        >>> print(wrapped([["where", "what"], ["mu = 0 is FedAvg", "FedProx"]], width=16))
        where    what
        -------  -------
        mu = 0   FedProx
        is
        FedAvg
    """
    if width is None:
        width = shutil.get_terminal_size((WIDE, 24)).columns
    widths = _widths(rows, width)
    header, *rest = rows
    lines = _lines(header, widths)
    lines.append(GAP.join("-" * size for size in widths))
    several = any(len(cell) > size for row in rest for cell, size in zip(row, widths, strict=True))
    for position, row in enumerate(rest):
        if several and position:
            lines.append("")
        lines += _lines(row, widths)
    return "\n".join(lines)


def _widths(rows: list[list[str]], width: int) -> list[int]:
    """The widest columns give way first, down to their longest word."""
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    least = [max(len(word) for cell in column for word in [*cell.split(), ""]) for column in columns]
    while sum(widths) + len(GAP) * (len(widths) - 1) > width:
        spare = [size - low for size, low in zip(widths, least, strict=True)]
        if not any(spare):
            break
        widest = max(range(len(widths)), key=lambda i: (spare[i] > 0, widths[i]))
        widths[widest] -= 1
    return widths


def _lines(row: list[str], widths: list[int]) -> list[str]:
    cells = [wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
    lines = []
    for parts in zip_longest(*cells, fillvalue=""):
        padded = [part.ljust(size) for part, size in zip(parts, widths, strict=True)]
        lines.append(GAP.join(padded).rstrip())
    return lines


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells, the first being the header; numbers stand under each other at the right, the first column left.

    Example:
        >>> print(aligned([["client", "n"], ["0", "12"], ["1", "3"]]))
        client   n
        0       12
        1        3
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        lines.append(GAP.join([first.ljust(widths[0]), *cells]).rstrip())
    return "\n".join(lines)
