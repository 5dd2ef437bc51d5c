"""The tables of a study for a terminal and as Markdown."""

import re
from shutil import get_terminal_size

from fedlit.studies.config_diff import unequal_data, unequal_effort
from fedlit.studies.grids import clients_grid, cost_grid, difference_grid, main_grid, target_grid
from fedlit.studies.results import Results
from fedlit.studies.wording import Bold, Grid, Paper, short

MARK = " *"
GAP = "  "
MOST = 40  # characters of a name


def terminal_table(results: Results, width: int | None = None) -> str:
    """Every cell, its difference to the baseline, and runs that reached the target; `*` marks the best."""
    width = width or get_terminal_size().columns
    main = main_grid(results)
    grids = [main, difference_grid(results), target_grid(results)]
    blocks = [_in_terminal(grid, width) for grid in grids if grid is not None]
    if any(isinstance(text, Bold) for row in main.rows for text in row):
        blocks.append("*  ahead of every other row of the column by a paired 95 % interval that excludes 0")
    for column, options in unequal_data(results).items():
        where = f" of {column}" if column else ""
        warning = "differ in their data, so methods alone are not compared"
        blocks.append(f"!  the rows{where} {warning}: {', '.join(options)}")
    for option, rows in unequal_effort(results).items():
        blocks.append(
            f"!  the rows differ in how long they train: {option} is {rows}; set it on the command line for all"
        )
    return "\n\n".join(blocks)


def markdown_tables(results: Results) -> str:
    """All tables of a study, under its title."""
    study = results.study
    blocks = [f"# {_escaped(study.title)}"]
    blocks += [_escaped(text) for text in (study.source, study.note) if text]
    grids = [
        main_grid(results),
        difference_grid(results),
        clients_grid(results),
        cost_grid(results),
        target_grid(results),
    ]
    for grid in grids:
        if grid is not None:
            blocks += [f"## {_escaped(grid.title)}", grid_in_markdown(grid), _escaped(grid.note)]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _in_terminal(grid: Grid, width: int) -> str:
    """A grid in columns; those that do not fit beside each other stand in blocks below."""
    texts = [[short(row[0], MOST), *map(_marked, row[1:])] for row in (grid.head, *grid.rows)]
    widths = [max(len(row[i]) for row in texts) for i in range(len(grid.head))]
    lines = [grid.title]
    for block in _blocks(widths, [isinstance(name, Paper) for name in grid.head], width):
        if len(lines) > 1:
            lines.append("")
        for row in texts:
            cells = [row[i].ljust(widths[i]) for i in block]
            lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines)


def _blocks(widths: list[int], belongs: list[bool], width: int) -> list[list[int]]:
    """Columns by number, as many as fit side by side; the names of rows lead every block.

    Args:
        widths: Characters of each column.
        belongs: Whether it stays with the column before it.
        width: Characters of a line.

    Example:
        >>> _blocks([5, 10, 10, 10], [False] * 4, 30)
        [[0, 1, 2], [0, 3]]
    """
    blocks = [[0]]
    used = widths[0]
    for i in range(1, len(widths)):
        needed = len(GAP) + widths[i]
        is_too_wide = used + needed > width and not belongs[i]
        if is_too_wide and len(blocks[-1]) > 1:
            blocks.append([0])
            used = widths[0]
        blocks[-1].append(i)
        used += needed
    return blocks


def _marked(text: str) -> str:
    return text + MARK if isinstance(text, Bold) else text


def grid_in_markdown(grid: Grid) -> str:
    """A grid as a Markdown table, without its title and note."""
    head = [_escaped(name) for name in grid.head]
    lines = [_line(head), _line(["---"] + ["---:"] * (len(head) - 1))]
    for row in grid.rows:
        lines.append(_line([_bold(text) for text in row]))
    return "\n".join(lines)


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bold(text: str) -> str:
    return f"**{_escaped(text)}**" if isinstance(text, Bold) else _escaped(text)


def _escaped(text: str) -> str:
    """Text that Markdown leaves as it is.

    Example:
        >>> _escaped("a|b *c* <d>")
        'a\\\\|b \\\\*c\\\\* &lt;d>'
    """
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;")
    return re.sub(r"([\\|*_`\[\]#])", r"\\\1", text)
