"""Every page, the verdicts and the README's column, as text by path: what is on disk must be the same."""

import csv
import io
import re
from collections.abc import Mapping
from pathlib import Path

from tools.paper_pages.answers import figure_name
from tools.paper_pages.evidence import NOT_RUN, OPEN, by_question, evidence, findings, has_pairs, verdict_line
from tools.paper_pages.figure import figure
from tools.paper_pages.leaderboard import Leaderboard, in_one_line, leaderboard_figure, leaderboard_page
from tools.paper_pages.page import paper_page
from tools.paper_pages.source import Source, read_source

SOURCES = Path("docs/papers/src")
LEADERBOARD = SOURCES / "leaderboard.yaml"
FIGURES = Path("docs/papers/figures")
README = Path("README.md")
COLUMN = "what we measured"
FIRST, LAST = "## Methods", "## Your own method"


def sources(root: Path) -> list[Source]:
    """Of the papers' pages."""
    return [read_source(path) for path in sorted((root / SOURCES).glob("*.yaml")) if path.name != LEADERBOARD.name]


def built(root: Path) -> dict[Path, str]:
    """All texts, by path from the repository's root."""
    texts = {}
    lines: dict[str, str] = {}
    for source in sources(root):
        pieces = evidence(root, source.runs)
        texts[Path("docs/papers") / f"{source.name}.md"] = paper_page(source, root, pieces)
        lines |= dict.fromkeys(source.methods, verdict_line(findings(source, pieces)))
    board = Leaderboard.read(root / LEADERBOARD)
    texts[Path("docs/leaderboard.md")] = leaderboard_page(board, root)
    readme = (root / README).read_text(encoding="utf-8")
    named = methods_of(readme)
    measured = in_one_line(board, root, named)
    verdicts = {name: lines.get(name, measured[name]) for name in named}
    texts[Path("docs/papers/verdicts.csv")] = _as_csv(verdicts)
    texts[README] = with_verdicts(readme, {name: in_readme(verdict) for name, verdict in verdicts.items()})
    return texts


def figures(root: Path) -> dict[Path, str]:
    """Of every page that has something to show; their bytes depend on the version of matplotlib."""
    drawn = {}
    for source in sources(root):
        found = findings(source, evidence(root, source.runs))
        for place, group in enumerate(by_question(found), 1):
            if has_pairs(group):
                drawn[FIGURES / figure_name(source.name, place)] = figure(group)
    board = leaderboard_figure(Leaderboard.read(root / LEADERBOARD), root)
    if board is not None:
        drawn[FIGURES / "leaderboard.svg"] = board
    return drawn


def stale(root: Path) -> list[str]:
    """What on disk is not what is built from the runs."""
    found = []
    for path, text in built(root).items():
        whole = root / path
        if not whole.is_file() or whole.read_text(encoding="utf-8") != text:
            found.append(str(path))
    return found


def in_readme(verdict: str) -> str:
    """A dash for what was not run: the page says so, and a column of it would say nothing.

    Example:
        >>> in_readme("not run yet"), in_readme("agrees")
        ('–', 'agrees')
    """
    return "–" if verdict in (NOT_RUN, f"{OPEN}: not run") else verdict


def methods_of(readme: str) -> list[str]:
    """The methods of the README's table, in its order."""
    return [row[0] for row in _rows(readme)[2:]]


def with_verdicts(readme: str, verdicts: Mapping[str, str]) -> str:
    """The README, its table of methods with the verdicts in the last column."""
    rows = _rows(readme)
    if rows[0][-1] == COLUMN:
        rows = [row[:-1] for row in rows]
    lines = [[*rows[0], COLUMN], [*rows[1], "---"], *[[*row, verdicts[row[0]]] for row in rows[2:]]]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    start, end = _span(readme)
    return readme[:start] + text + readme[end:]


def _rows(readme: str) -> list[list[str]]:
    start, end = _span(readme)
    rows = []
    for line in readme[start:end].splitlines():
        rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
    return [[cell.strip("| ") for cell in row] for row in rows]


def _span(readme: str) -> tuple[int, int]:
    """Where the table of methods begins and ends."""
    section = readme.index(FIRST)
    found = re.compile(r"(^\|.*\|\n)+", re.MULTILINE).search(readme, section, readme.index(LAST))
    if found is None:
        raise ValueError(f"{README} has no table below {FIRST!r}.")
    return found.span()


def _as_csv(verdicts: Mapping[str, str]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["method", "verdict"])
    writer.writerows(verdicts.items())
    return written.getvalue()
