"""The page of a paper as Markdown: its claim, its setting, our runs, theirs and ours side by side, the verdict."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

import pandas as pd

from fedlit.studies.study import read_study
from fedlit.studies.tables import Table as Numbers
from fedlit.studies.tables import cost_table, main_table, markdown_table, plus_minus, target_table
from tools.paper_pages.answers import answers
from tools.paper_pages.evidence import (
    NOT_RUN,
    Evidence,
    Finding,
    findings,
    part,
    run_columns,
    runs_csv,
    verdict_line,
    verdicts,
)
from tools.paper_pages.recorded import RecordedResults
from tools.paper_pages.source import RunSet, Source, Table
from tools.paper_pages.table import table

MADE = "<!-- Made by `python -m tools.paper_pages` from docs/papers/src and docs/papers/runs; do not edit. -->"
RULE = (
    "A gain is the mean of the differences within pairs of seeds, in the direction that is better. A comparison "
    "*agrees* if its 95 % interval lies above 0, *disagrees* if it does not and lies below the smallest gain that "
    "matters, and *inconclusive* otherwise, or where a pair of seeds is missing or did not reach the target. A "
    "claim agrees or disagrees if more than half of its comparisons that were run do, be it one, and none says the "
    "opposite; where some agree and others disagree, it depends, and both are counted. A control is answered yes or no "
    "by the same rule. Nothing is corrected for there being several."
)


def paper_page(source: Source, root: Path, pieces: Sequence[Evidence]) -> str:
    """The whole page.

    Args:
        source: What it says beside numbers.
        root: Of the repository.
        pieces: The numbers, by study.
    """
    found = findings(source, pieces)
    blocks = [
        f"# {source.title}",
        MADE,
        f"[{source.citation}]({source.link})",
        _verdicts(found),
        _sizes(source, pieces),
        "## What the paper claims",
        source.claim,
        "## Its setting",
        source.setting,
        "## What the authors' code does otherwise",
        _bullets(source.differences),
        "## Answers",
        *answers(source.name, found),
        "## Controls",
        source.control,
        "## Theirs and ours",
        *_tables(source, pieces),
        "## Our runs",
        *_our_runs(source, root, pieces),
        f"Seen before these settings were fixed: {source.seen_before}",
        _again(source, pieces),
        "## How the verdict is found, and what would settle it",
        RULE,
        f"What would settle it: {source.would_settle}",
    ]
    return "\n\n".join(block.strip() for block in blocks if block) + "\n"


def _verdicts(found: Sequence[Finding]) -> str:
    """A line for each claim and each control."""
    claims = verdicts(found, "claim")
    if not claims:
        return f"**Verdict: {verdict_line(found)}.**"
    lines = [f"{brief}: **{word}**" for brief, word in claims.items()]
    lines += [f"control, {brief}: **{word}**" for brief, word in verdicts(found, "control").items()]
    return f"**Verdict**\n\n{_bullets(lines)}"


def _sizes(source: Source, pieces: Sequence[Evidence]) -> str:
    """Of the sets that some number here is of."""
    made = {runs.name for piece in pieces for runs in piece.made_by.values()}
    if not made:
        return "Nothing of it was run yet at these settings."
    sizes = _bullets(f"`{runs.name}`: {runs.size}." for runs in source.runs if runs.name in made)
    return f"At these sizes, which are much smaller than the paper's:\n\n{sizes}"


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {text}" for text in texts)


def _our_runs(source: Source, root: Path, pieces: Sequence[Evidence]) -> list[str]:
    """What was called, with which seeds, on what, for how long."""
    studies = {piece.study: piece.results.study for piece in pieces}
    studies |= {study: read_study(root / "configs" / study) for study in {runs.study for runs in source.tuning}}
    rows = []
    for runs in (*source.tuning, *source.runs):
        seeds = ", ".join(str(pair.training) for pair in studies[runs.study].seeds)
        rows.append((f"`{runs.name}`", runs.size, seeds, *_spent(root, runs)))
    head = ("", "size", "seeds", "runs", "CPU", "hours")
    blocks = [table(head, rows)]
    commands = [f"{runs.command}  # {runs.name}" for runs in (*source.tuning, *source.runs)]
    blocks.append("```bash\n" + "\n".join(commands) + "\n```")
    said = ["A seed is of training and of the partition."]
    if any("FOLDER" in command for command in commands):
        said.append("FOLDER holds the data sets as .npz.")
    said.append("Hours are those of the rounds, one thread, on a core that others used, too.")
    if source.tuning:
        said.append("Rates were picked on the same test images with another seed.")
    blocks.append(" ".join(said))
    return blocks


def _again(source: Source, pieces: Sequence[Evidence]) -> str:
    """How to make one of the numbers again."""
    row = source.questions[0].row
    for piece in pieces:
        first = piece.results.study.seeds[0]
        for cell in piece.results.study.cells:
            values = piece.results.values(cell)
            if cell.row == row and first in values:
                number = plus_minus(values[first], nan, cell.measure)
                command = piece.made_by[cell.row, cell.column].command_of(cell.row, cell.column)
                text = f"One number again, {cell} with seed {first.training}, which is {number}:"
                return f"{text}\n\n```bash\n{command}\n```"
    return ""


def _spent(root: Path, runs: RunSet) -> tuple[str, str, str]:
    """Runs that are done, the processor, and hours; or that it was not run."""
    path = runs_csv(root, runs)
    if not path.is_file():
        return NOT_RUN, "", ""
    runs = pd.read_csv(path, keep_default_na=False)
    done = runs[runs["status"] == "done"].drop_duplicates("folder")  # cells may share their runs
    status = f"{len(done)} done"
    failed = int((runs["status"] == "failed").sum())
    if failed:
        status += f", {failed} failed"
    made_on = [f"{line.cpu}; torch {line.torch}, Python {line.python}" for line in done.itertuples()]
    hours = done["seconds"].astype(float).sum() / 3600
    return status, "; ".join(sorted(set(made_on))), f"{hours:.2f}"


def _tables(source: Source, pieces: Sequence[Evidence]) -> list[str]:
    by_study = {piece.study: piece for piece in pieces}
    blocks = []
    for asked in source.tables:
        blocks += _table(asked, by_study[asked.study].results)
    if not blocks:
        return [f"{NOT_RUN.capitalize()}."]
    cited = dict.fromkeys(piece.results.study.source for piece in pieces)  # studies may name the same table
    blocks += [f"The paper's numbers: {name}." for name in cited if name]
    return [*blocks, *_costs(pieces)]


def _table(asked: Table, results: RecordedResults) -> list[str]:
    """The numbers, and what targets took; nothing where nothing of it was run."""
    columns = [column for column in asked.columns if column in run_columns(results)]
    if not columns:
        return []
    chosen = part(results, asked.rows, columns)
    blocks = [f"### {asked.title}"]
    for grid in (main_table(chosen), target_table(chosen)):
        if grid is not None:
            blocks += [f"{grid.title}:", markdown_table(_with_not_run(grid)), grid.note]
    rest = [column for column in asked.columns if column not in columns]
    if rest:
        blocks.append(f"Columns that were {NOT_RUN.removesuffix(' yet')}: {'; '.join(rest)}.")
    return blocks


def _costs(pieces: Sequence[Evidence]) -> list[str]:
    """In one table for all studies, folded: it has a line for each cell."""
    grids = [cost_table(piece.results) for piece in pieces if piece.made_by]
    costs = markdown_table(replace(grids[0], frame=pd.concat([grid.frame for grid in grids])))
    return ["<details><summary>What a run took</summary>", costs, grids[0].note, "</details>"]


def _with_not_run(grid: Numbers) -> Numbers:
    """The table with cells of no run marked as not run."""
    frame = grid.frame.map(lambda text: NOT_RUN if text.startswith("missing (0/") else text)
    return replace(grid, frame=frame)
