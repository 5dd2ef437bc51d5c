"""The page of a paper as Markdown: its claim, its setting, our runs, theirs and ours side by side, the verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

import pandas as pd

from fedlit.studies.grid import Grid
from fedlit.studies.grids import cost_grid, main_grid, target_grid
from fedlit.studies.recorded import RecordedResults
from fedlit.studies.study import read_study
from fedlit.studies.tables import grid_in_markdown
from fedlit.studies.wording import difference, plus_minus
from tools.paper_pages.evidence import NOT_RUN, Finding, answering, findings, part, run_columns, runs_csv, verdict_line
from tools.paper_pages.source import RunSet, Source

MADE = "<!-- Made by `python -m tools.paper_pages` from docs/papers/src and docs/papers/runs; do not edit. -->"
RULE = (
    "A gain is the mean of the differences within pairs of seeds, in the direction that is better. A comparison "
    "*agrees* if its 95 % interval lies above 0, *disagrees* if it does not and lies below the smallest gain that "
    "matters, and *cannot be told* otherwise, or where a pair of seeds is missing or did not reach the target. A "
    "claim agrees or disagrees if more than half of its comparisons that were run do, be it one, and none says the "
    "opposite; a control is answered yes or no by the same rule. Nothing is corrected for there being several."
)


def paper_page(source: Source, root: Path) -> str:
    """The whole page."""
    runs, results = answering(root, source.runs)
    found = findings(source, results)
    blocks = [
        f"# {source.title}",
        MADE,
        f"[{source.citation}]({source.link})",
        f"**Verdict: {verdict_line(found)}.**",
        _sizes(runs, results),
        "## What the paper claims",
        source.claim,
        "## Its setting",
        source.setting,
        "## What the authors' code does otherwise",
        _bullets(source.differences),
        "## Our runs",
        *_our_runs(source, root),
        f"Seen before these settings were fixed: {source.seen_before}",
        _again(source, runs, results),
        "## Theirs and ours",
        *_tables(source, results),
        "## Answers",
        _answers(found),
    ]
    if found:
        blocks.append(f"![paired differences with 95 % intervals](figures/{source.name}.svg)")
    blocks += [
        "## Controls",
        source.control,
        "## How the verdict is found, and what would tell",
        RULE,
        f"What would tell: {source.would_tell}",
    ]
    return "\n\n".join(block.strip() for block in blocks if block) + "\n"


def _sizes(runs: RunSet, results: RecordedResults | None) -> str:
    if results is None:
        return "Nothing of it was run yet at these settings."
    return f"At the size of `{runs.name}`, which is much smaller than the paper's: {runs.size}."


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _our_runs(source: Source, root: Path) -> list[str]:
    """What was called, with which seeds, on what, for how long."""
    rows = []
    for runs in (*source.tuning, *source.runs):
        seeds = ", ".join(str(pair.training) for pair in read_study(root / "configs" / runs.study).seeds)
        rows.append((f"`{runs.name}`", runs.size, seeds, *_spent(root, runs)))
    head = ("", "size", "seeds", "runs", "CPU", "hours")
    blocks = [table(head, rows)]
    commands = [f"{runs.command}  # {runs.name}" for runs in (*source.tuning, *source.runs)]
    blocks.append("```bash\n" + "\n".join(commands) + "\n```")
    blocks.append(
        "A seed is of training and of the partition. FOLDER holds the data sets as .npz. Hours are those of the "
        "rounds, one thread, on a core that others used, too. Rates were picked on the same test images with "
        "another seed."
    )
    return blocks


def _again(source: Source, runs: RunSet, results: RecordedResults | None) -> str:
    """How to make one of the numbers again."""
    if results is None:
        return ""
    row = source.questions[0].row
    for cell in results.study.cells:
        values = results.values(cell)
        first = results.study.seeds[0]
        if cell.row == row and first in values:
            number = plus_minus(values[first], nan, cell.measure)
            command = runs.command_of(cell.row, cell.column)
            return f"One number again, {cell} with seed {first.training}, which is {number}:\n\n```bash\n{command}\n```"
    return ""


def _spent(root: Path, runs: RunSet) -> tuple[str, str, str]:
    """Runs that are done, the processor, and hours; or that it was not run."""
    path = runs_csv(root, runs)
    if not path.is_file():
        return NOT_RUN, "", ""
    runs = pd.read_csv(path, keep_default_na=False)
    done = runs[runs["status"] == "done"].drop_duplicates("folder")  # cells may share their runs
    told = f"{len(done)} done"
    failed = int((runs["status"] == "failed").sum())
    if failed:
        told += f", {failed} failed"
    made_on = [f"{line.cpu}; torch {line.torch}, Python {line.python}" for line in done.itertuples()]
    hours = done["seconds"].astype(float).sum() / 3600
    return told, "; ".join(sorted(set(made_on))), f"{hours:.2f}"


def _tables(source: Source, results: RecordedResults | None) -> list[str]:
    if results is None:
        return [f"{NOT_RUN.capitalize()}."]
    columns = run_columns(results)
    blocks = []
    for asked in source.tables:
        chosen = part(results, asked.rows, columns)
        grids = [main_grid(chosen), target_grid(chosen)]
        blocks.append(f"### {asked.title}")
        for grid in grids:
            if grid is not None:
                blocks += [f"{grid.title}:", grid_in_markdown(_told(grid)), grid.note]
    if results.study.source:
        blocks.append(f"The paper's numbers: {results.study.source}.")
    rest = [column for column in results.study.columns if column not in columns]
    if rest:
        blocks.append(f"Columns of the study that were {NOT_RUN.removesuffix(' yet')} at this size: {'; '.join(rest)}.")
    every_row = [row for asked in source.tables for row in asked.rows]
    cost = cost_grid(part(results, every_row, columns))
    blocks += ["### What a run took", grid_in_markdown(cost), cost.note]
    return blocks


def _told(grid: Grid) -> Grid:
    """A cell without a run says so in our words."""
    rows = []
    for row in grid.rows:
        rows.append(tuple(NOT_RUN if text.startswith("missing (0/") else text for text in row))
    return replace(grid, rows=tuple(rows))


def _answers(found: Sequence[Finding]) -> str:
    if not found:
        return f"{NOT_RUN.capitalize()}."
    rows = []
    for finding in found:
        ours = NOT_RUN if finding.reading == NOT_RUN else "no pair reached it"
        if finding.found.n:
            ours = f"{difference(finding.found, finding.measure)} (n = {finding.found.n})"
        theirs = "–" if finding.paper is None else f"{finding.paper:+.4g}"
        question = finding.question
        asked = f"{question.ask} ({question.kind}; {question.row} less {question.over})"
        least = f"{question.least:g}"
        word = "–" if question.kind == "bound" else finding.reading
        rows.append((asked, finding.column, theirs, ours, least, word))
    head = ("question", "where", "paper", "ours [95 % interval]", "least gain that matters", "by the rule")
    return table(head, rows)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table of Markdown as it stands.

    Example:
        >>> print(table(("a", "b"), [("1", "2")]))
        | a | b |
        | --- | --- |
        | 1 | 2 |
    """
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
