"""The table of a study for a paper, with booktabs."""

import re
from textwrap import wrap
from unicodedata import name

from fedlit.studies.grids import OURS, main_grid
from fedlit.studies.results import Results
from fedlit.studies.wording import Bold, Grid, Paper

GREEK = re.compile(r"GREEK (SMALL|CAPITAL) LETTER (\w+)")
# Those that LaTeX has: the others look like Latin ones.
CAPITALS = ("Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega")
SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    '"': "''",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "–": "--",
    "−": "$-$",
    "×": r"$\times$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "→": r"$\rightarrow$",
    "∞": r"$\infty$",
    "µ": r"$\mu$",  # the sign of micro
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
WIDEST = 66  # characters that surely fit beside each other on a page of the class article
GAP = 3  # characters between columns
LONGEST_NAME = 28  # characters of a row's name; longer ones are broken
LONGEST_HEAD = 20  # of a column's


def latex_table(results: Results) -> str:
    r"""A `table` for a document with \usepackage{booktabs}; columns that do not fit stand in blocks below."""
    grid = main_grid(results)
    study = results.study
    lines = [
        r"% \usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering\small",
        f"  \\caption{{{_caption(results, grid)}}}",
    ]
    for block in _blocks(grid):
        lines.append(r"  \par\medskip")
        lines += _tabular(grid, block)
    lines += [f"  \\label{{tab:{_label(study.title)}}}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def escaped(text: str) -> str:
    r"""Text that LaTeX prints as it is.

    Example:
        >>> print(escaped("100 % of A&B_1 ± 2"))
        100 \% of A\&B\_1 $\pm$ 2
        >>> print(escaped("Dirichlet, α ≤ 0.5"))
        Dirichlet, $\alpha$ $\leq$ 0.5
    """
    return "".join(map(_printed, " ".join(text.split())))


def _printed(character: str) -> str:
    """A character as LaTeX takes it; a Greek letter is a symbol of mathematics."""
    if character in SPECIAL:
        return SPECIAL[character]
    letter = GREEK.fullmatch(name(character, ""))
    if letter is None:
        return character
    command = letter[2].lower().replace("lamda", "lambda")
    if letter[1] == "CAPITAL":
        command = command.capitalize()
        if command not in CAPITALS:
            return character
    return f"$\\{command}$"


def _caption(results: Results, grid: Grid) -> str:
    note = grid.note.replace("Marked as best:", "Bold:")
    parts = [results.study.title, f"Measured: {grid.title}.", note]
    if any(isinstance(name, Paper) for name in grid.head):
        source = results.study.source
        parts.append(f"Paper: as printed there ({source})." if source else "Paper: as printed there.")
    return " ".join(escaped(part if part.endswith(".") else f"{part}.") for part in parts)


def _blocks(grid: Grid) -> list[list[int]]:
    """Columns by number, a column and its paper's numbers together, so many as fit on a page."""
    pairs: list[list[int]] = []
    for i in range(1, len(grid.head)):
        if isinstance(grid.head[i], Paper):
            pairs[-1].append(i)
        else:
            pairs.append([i])
    names = min(LONGEST_NAME, max(len(row[0]) for row in grid.rows))
    blocks: list[list[int]] = []
    used = WIDEST + 1
    for pair in pairs:
        needed = _width(grid, pair)
        if used + needed > WIDEST:
            blocks.append([])
            used = names
        blocks[-1] += pair
        used += needed
    return blocks


def _width(grid: Grid, columns: list[int]) -> int:
    """Characters that columns take; a name spans its pair."""
    entries = 0
    for i in columns:
        entries += max(len(row[i]) for row in grid.rows) + GAP
    return max(entries, min(LONGEST_HEAD, len(grid.head[columns[0]])) + GAP)


def _tabular(grid: Grid, block: list[int]) -> list[str]:
    first = "l"
    if any(len(row[0]) > LONGEST_NAME for row in grid.rows):
        first = r"p{0.35\textwidth}"
    lines = [rf"  \begin{{tabular}}{{{first}{'r' * len(block)}}}", r"    \toprule"]
    lines += _head(grid, block)
    lines.append(r"    \midrule")
    for row in grid.rows:
        name = escaped(row[0])
        if len(row[0]) > LONGEST_NAME:
            name = rf"{{\raggedright {name}\par}}"
        cells = [name, *[_bold(row[i]) for i in block]]
        lines.append(f"    {' & '.join(cells)} \\\\")
    return [*lines, r"    \bottomrule", r"  \end{tabular}"]


def _head(grid: Grid, block: list[int]) -> list[str]:
    """Names of columns; with the paper's numbers a name spans both, and a second line names each."""
    if not any(isinstance(grid.head[i], Paper) for i in block):
        return [f"    & {' & '.join(_name(grid.head[i]) for i in block)} \\\\"]
    names: list[str] = []
    rules: list[str] = []
    kinds: list[str] = []
    for position, i in enumerate(block, start=2):
        if isinstance(grid.head[i], Paper):
            kinds.append(grid.head[i])
            continue
        has_paper = i + 1 < len(grid.head) and isinstance(grid.head[i + 1], Paper)
        span = 2 if has_paper else 1
        names.append(rf"\multicolumn{{{span}}}{{c}}{{{_name(grid.head[i])}}}")
        rules.append(rf"\cmidrule(lr){{{position}-{position + span - 1}}}")
        kinds.append(OURS)
    if grid.head[block[0]] == OURS:  # the only column: it would be named twice
        return [f"    & {' & '.join(kinds)} \\\\"]
    return [f"    & {' & '.join(names)} \\\\", f"    {' '.join(rules)}", f"    & {' & '.join(kinds)} \\\\"]


def _name(head: str) -> str:
    """A column's name, on several lines if it is long."""
    lines = [escaped(line) for line in wrap(head, LONGEST_HEAD)]
    if len(lines) <= 1:
        return "".join(lines)
    broken = r"\\".join(lines)
    return rf"\shortstack{{{broken}}}"


def _bold(text: str) -> str:
    return rf"\textbf{{{escaped(text)}}}" if isinstance(text, Bold) else escaped(text)


def _label(title: str) -> str:
    return re.sub(r"\W+", "-", title.casefold(), flags=re.ASCII).strip("-") or "study"
