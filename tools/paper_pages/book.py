"""Every page and the verdicts, as text by path: what is on disk must be the same."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from fedlit import methods
from fedlit.cli.methods import methods_of
from tools.paper_pages.answers import figure_name
from tools.paper_pages.evidence import by_question, evidence, findings, has_pairs, verdict_line
from tools.paper_pages.figure import figure
from tools.paper_pages.leaderboard import Leaderboard, in_one_line, leaderboard_figure, leaderboard_page
from tools.paper_pages.page import paper_page
from tools.paper_pages.source import Source, read_source

SOURCES = Path("docs/papers/src")
LEADERBOARD = SOURCES / "leaderboard.yaml"
FIGURES = Path("docs/papers/figures")


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
    named = [method.__name__ for method in methods_of(methods)]
    measured = in_one_line(board, root, named)
    texts[Path("docs/papers/verdicts.csv")] = _as_csv({name: lines.get(name, measured[name]) for name in named})
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


def _as_csv(verdicts: Mapping[str, str]) -> str:
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\n")
    writer.writerow(["method", "verdict"])
    writer.writerows(verdicts.items())
    return written.getvalue()
