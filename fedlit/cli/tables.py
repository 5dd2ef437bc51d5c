"""Tables for a terminal."""

import shutil
from itertools import zip_longest
from textwrap import wrap

WIDE = 160  # columns where there is no terminal
NARROWEST = 8  # columns of a cell that is wrapped


def wrapped(rows: list[list[str]], width: int | None = None) -> str:
    """Rows of cells, the first being the header; the widest columns are wrapped until a row fits.

    Example:
        >>> print(wrapped([["name", "special cases"], ["FedProx", "mu = 0 is FedAvg"]], width=20))
        name     special
                 cases
        -------  -----------
        FedProx  mu = 0 is
                 FedAvg
    """
    width = width or shutil.get_terminal_size((WIDE, 24)).columns
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    while sum(widths) + 2 * len(widths) - 2 > width and max(widths) > NARROWEST:
        widths[widths.index(max(widths))] -= 1
    header, *rest = rows
    lines = []
    for row in (header, ["-" * size for size in widths], *rest):
        cells = [wrap(cell, size) for cell, size in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def aligned(rows: list[list[str]]) -> str:
    """Rows of cells, the first being the header: the first column to the left, numbers to the right.

    Example:
        >>> print(aligned([["client", "n"], ["0", "12"], ["1", "3"]]))
        client   n
        0       12
        1        3
    """
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for name, *cells in rows:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        lines.append("  ".join([name.ljust(first), *numbers]).rstrip())
    return "\n".join(lines)
