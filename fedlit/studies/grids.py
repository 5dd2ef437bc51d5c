"""What a study's tables say, as text in rows and columns, whatever they are written as.

The first table has a number for each cell, the paper's beside it. `Bold` is what stands in bold: a cell that is ahead
of every other of its column by a paired interval that excludes 0.
"""

from collections.abc import Iterable
from math import isnan

import pandas as pd

from fedlit.studies.measure import TO_TARGET, Measure
from fedlit.studies.results import Results
from fedlit.studies.statistics import estimate
from fedlit.studies.study import ONLY_COLUMN, Cell
from fedlit.studies.wording import Bold, Grid, Paper, difference, measured, metric_value, plus_minus, size

NONE = "–"
OURS = "ours"  # the column of a study that has no columns
PAPER = Paper("paper")


def main_grid(results: Results) -> Grid:
    """Mean and standard deviation of every cell, the paper's number beside it."""
    study = results.study
    head = [""]
    columns = []
    for column in study.columns:
        shown = [_entry(results, study.cell(row, column)) for row in study.rows]
        head.append(_column_name(column))
        columns.append(shown)
        papers = [_paper(study.cell(row, column)) for row in study.rows]
        if any(paper != NONE for paper in papers):
            head.append(PAPER)
            columns.append(papers)
    rows = tuple((row, *entries) for row, entries in zip(study.rows, zip(*columns, strict=True), strict=True))
    return Grid(measured(study.cells), tuple(head), rows, main_note(results))


def main_note(results: Results) -> str:
    """How the first table is read."""
    study = results.study
    seeds = len(study.seeds)
    if seeds == 1:
        return "One run each: without more seeds there is no interval, and none is marked as best."
    note = (
        f"Mean ± standard deviation over n = {seeds} pairs of seeds. Marked as best: ahead of every other row of the "
        "column by a paired 95 % interval that excludes 0."
    )
    if any(runs < seeds for runs in results.summary["done"]):
        note += f" (k/{seeds}): only k of {seeds} runs are done."
    if any(cell.measure.is_to_target for cell in study.cells):
        note += " (k reached): mean over the k runs that reached the target."
    return note


def difference_grid(results: Results) -> Grid | None:
    """What every row has over the baseline; None if there is nothing to compare."""
    study = results.study
    others = [row for row in study.rows if row != study.baseline]
    if not others:
        return None
    rows = []
    for row in others:
        cells = [study.cell(row, column) for column in study.columns]
        rows.append((row, *[_difference(results, cell) for cell in cells]))
    head = ("", *[column or "difference" for column in study.columns])
    note = (
        "Mean of the differences within pairs of seeds [95 % interval of the t-distribution] and p of the paired "
        "t-test of each comparison by itself: nothing is corrected for there being several."
    )
    return Grid(f"Paired difference to {study.baseline}", head, tuple(rows), note)


def clients_grid(results: Results) -> Grid | None:
    """Worst client, worst tenth, spread, and who does better than alone; None if nothing is measured of clients."""
    lines = _done(results)
    lines = [(cell, line) for cell, line in lines if not isnan(line["worst_client"])]
    if not lines:
        return None
    has_alone = any(not isnan(line["better_than_alone"]) for _, line in lines)
    head = ("", "worst client", "worst tenth", "spread (sd)", *(("better than alone",) if has_alone else ()))
    rows = []
    for cell, line in lines:
        shown = [metric_value(line[name], cell.measure) for name in ("worst_client", "worst_tenth", "spread")]
        if has_alone:
            share = line["better_than_alone"]
            shown.append(NONE if isnan(share) else f"{100 * share:.0f} % of clients")
        rows.append((str(cell), *shown))
    note = "Over clients within a run, then the mean over runs; the worst tenth is at least one client."
    if has_alone:
        note += " Better than alone: the share of clients who do better than under LocalOnly with the same seeds."
    return Grid("Clients", head, tuple(rows), note)


def cost_grid(results: Results) -> Grid:
    """Rounds, bytes and seconds of a run, as means."""
    rows = []
    for cell, line in _done(results):
        seconds = f"{line['seconds']:.1f}"
        rows.append((str(cell), f"{line['rounds']:.4g}", size(line["bytes"]), seconds))
    note = "Means over runs; bytes are all that crossed clients' borders, up and down; seconds are of the rounds."
    return Grid("What a run took", ("", "rounds", "bytes", "seconds"), tuple(rows), note)


def target_grid(results: Results) -> Grid | None:
    """Rounds, bytes and seconds to the target, and how many runs reached it; None without a target."""
    targets = targets_of(results.study.cells)
    if not targets:
        return None
    rows = []
    for cell in results.study.cells:
        if cell.measure.target is not None:
            rows.append((str(cell), *_to_target(results, cell)))
    values = " or ".join(f"{target:g}" for target in targets)
    note = "Mean ± standard deviation over the runs that reached the target; the others are in no mean."
    return Grid(f"To the target {values}", ("", "reached", "rounds", "bytes", "seconds"), tuple(rows), note)


def targets_of(cells: Iterable[Cell]) -> list[float]:
    """The targets of some cells, each once."""
    return sorted({cell.measure.target for cell in cells if cell.measure.target is not None})


def reached(results: Results, cell: Cell) -> tuple[int, int]:
    """How many of a cell's runs reached the target, and how many are done."""
    runs = results.done_runs_of(cell)
    return int(runs["rounds_to_target"].notna().sum()), len(runs)


def _to_target(results: Results, cell: Cell) -> list[str]:
    number, done = reached(results, cell)
    if done == 0:
        return [NONE] * 4
    shown = [f"{number} of {done}"]
    for at in TO_TARGET:
        found = estimate(results.done_runs_of(cell)[at].dropna().astype(float).to_list())
        text = "not reached"
        if found.n:
            text = plus_minus(found.mean, found.sd, Measure(at=at, target=cell.measure.target))
        shown.append(text)
    return shown


def _done(results: Results) -> list[tuple[Cell, pd.Series]]:
    """Cells of which a run is done, with their lines of summary.csv."""
    lines = [line for _, line in results.summary.iterrows()]
    return [(cell, line) for cell, line in zip(results.study.cells, lines, strict=True) if line["done"]]


def _column_name(column: str) -> str:
    return OURS if column == ONLY_COLUMN else column


def _entry(results: Results, cell: Cell | None) -> str:
    """What stands in a cell, and why where it is no number."""
    if cell is None:
        return NONE
    seeds = len(results.study.seeds)
    done = len(results.done_runs_of(cell))
    found = estimate(list(results.values(cell).values()))
    if done == 0:
        return _why_empty(results, cell)
    notes = []
    if done < seeds:
        notes.append(f"{done}/{seeds}")
    if cell.measure.is_to_target and found.n < done:
        notes.append(f"{found.n} of {done} reached")
    text = "not reached"
    if found.n:
        text = plus_minus(found.mean, found.sd, cell.measure)
    if notes:
        text += f" ({', '.join(notes)})"
    return Bold(text) if results.is_best(cell) else text


def _why_empty(results: Results, cell: Cell) -> str:
    runs = results.runs_of(cell)
    failed = int((runs["status"] == "failed").sum())
    if failed:
        return f"failed ({failed}/{len(runs)})"
    return f"missing (0/{len(runs)})"


def _paper(cell: Cell | None) -> str:
    if cell is None or cell.paper is None:
        return NONE
    return f"{cell.paper:g}"


def _difference(results: Results, cell: Cell | None) -> str:
    if cell is None:
        return NONE
    found = results.against_baseline(cell)
    if found is None or found.n == 0:
        return "no pair"
    text = difference(found, cell.measure)
    if found.n == 1:
        return f"{text} (one pair: no interval)"
    if found.n < len(results.study.seeds):
        return f"{text} ({found.n} pairs)"
    return text
