"""From runs to a verdict, by a rule that was fixed before the runs.

A gain is the mean of the paired differences over seeds, in the direction that is better. By its 95 % interval:

    agrees           low > 0
    disagrees        high < least, the smallest gain that matters (and not low > 0)
    cannot be told   otherwise, and wherever a pair of seeds is missing or did not reach its target
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedlit.studies.measure import Measure
from fedlit.studies.recorded import RecordedResults, recorded_results
from fedlit.studies.statistics import Estimate
from fedlit.studies.study import Cell, read_study
from fedlit.studies.wording import metric_factor
from tools.paper_pages.source import Kind, Question, RunSet, Source

AGREES = "agrees"
DISAGREES = "disagrees"
OPEN = "cannot be told"
NOT_RUN = "not run yet"


@dataclass(frozen=True)
class Finding:
    """What a question came to in one column.

    Attributes:
        question: What was asked.
        column: Where.
        measure: Of the two rows.
        found: Row less `over`, over pairs of seeds.
        paper: The same difference in the paper, in the unit of the table.
        reading: By the rule.
    """

    question: Question
    column: str
    measure: Measure
    found: Estimate
    paper: float | None
    reading: str


def runs_csv(root: Path, runs: RunSet) -> Path:
    """Where the runs of a set are told, if it was run."""
    return root / "docs" / "papers" / "runs" / runs.name / "runs.csv"


def results_of(root: Path, runs: RunSet) -> RecordedResults | None:
    """What a set of runs found; None if it was not run yet."""
    path = runs_csv(root, runs)
    if not path.is_file():
        return None
    return recorded_results(read_study(root / "configs" / runs.study), path)


def answering(root: Path, sets: Sequence[RunSet]) -> tuple[RunSet, RecordedResults | None]:
    """The first set that was run, and what it found; if none was, the first."""
    for runs in sets:
        results = results_of(root, runs)
        if results is not None:
            return runs, results
    return sets[0], None


def part(results: RecordedResults, rows: Sequence[str], columns: Sequence[str]) -> RecordedResults:
    """Some rows and columns of a study's results, the first row as the baseline."""
    study = results.study
    cells = tuple(cell for cell in study.cells if cell.row in rows and cell.column in columns)
    chosen = replace(study, rows=tuple(rows), columns=tuple(columns), cells=cells, baseline=rows[0])
    return replace(results, study=chosen)


def run_columns(results: RecordedResults) -> list[str]:
    """The columns of which some run was made, done or failed."""
    runs = results.runs
    made = set(runs.loc[runs["status"] != "missing", "column"])
    return [column for column in results.study.columns if column in made]


def findings(source: Source, results: RecordedResults | None) -> list[Finding]:
    """What every question came to, in every column; nothing where nothing was run."""
    if results is None:
        return []
    found = []
    for question in source.questions:
        for column in question.columns:
            found.append(_finding(question, column, results))
    return found


def _finding(question: Question, column: str, results: RecordedResults) -> Finding:
    row = _cell(results, question.row, column)
    over = _cell(results, question.over, column)
    difference = results.difference(row, over)
    paper = None
    if row.paper is not None and over.paper is not None:
        paper = row.paper - over.paper
    word = NOT_RUN
    if _was_run(results, row) and _was_run(results, over):
        word = reading(difference, row.measure, question, len(results.study.seeds))
    return Finding(question, column, row.measure, difference, paper, word)


def _was_run(results: RecordedResults, cell: Cell) -> bool:
    """Whether some run of a cell was made, done or failed, whether or not it reached a target."""
    runs = results.runs
    of_cell = (runs["row"] == cell.row) & (runs["column"] == cell.column)
    return bool((runs.loc[of_cell, "status"] != "missing").any())


def _cell(results: RecordedResults, row: str, column: str) -> Cell:
    cell = results.study.cell(row, column)
    if cell is None:
        raise ValueError(f"the study has no cell {row!r}, {column!r}.")
    return cell


def reading(found: Estimate, measure: Measure, question: Question, wanted: int) -> str:
    """What a difference between rows that were run says of a claim.

    Args:
        found: Row less the other.
        measure: Which direction is better.
        question: Which gain matters.
        wanted: Pairs of seeds.
    """
    if found.n < wanted or wanted < 2:
        return OPEN
    low, high = gain_interval(found, measure)
    if low > 0:
        return AGREES
    if high < question.least:
        return DISAGREES
    return OPEN


def gain_interval(found: Estimate, measure: Measure) -> tuple[float, float]:
    """The interval of the gain, in the unit of the table: more is better."""
    factor = 1.0 if measure.is_to_target else metric_factor(measure)
    if measure.is_better_high:
        return factor * found.low, factor * found.high
    return -factor * found.high, -factor * found.low


def verdict(readings: Iterable[str]) -> str:
    """One word over several comparisons: more than half of them say so, and none says the opposite.

    Example:
        >>> verdict([AGREES, AGREES, OPEN]), verdict([AGREES, OPEN]), verdict([DISAGREES]), verdict([NOT_RUN])
        ('agrees', 'cannot be told', 'disagrees', 'not run yet')
    """
    run = [reading for reading in readings if reading != NOT_RUN]
    agree = run.count(AGREES)
    disagree = run.count(DISAGREES)
    if not run:
        return NOT_RUN
    if 2 * agree > len(run) and disagree == 0:
        return AGREES
    if 2 * disagree > len(run) and agree == 0:
        return DISAGREES
    return OPEN


def verdicts(found: Sequence[Finding], kind: Kind) -> dict[str, str]:
    """By the brief of every claim (or control) of which something was run."""
    readings: dict[str, list[str]] = {}
    for finding in found:
        if finding.question.kind == kind:
            readings.setdefault(finding.question.brief, []).append(finding.reading)
    words = {brief: verdict(its) for brief, its in readings.items()}
    return {brief: word for brief, word in words.items() if word != NOT_RUN}


def verdict_line(found: Sequence[Finding]) -> str:
    """The verdict of every claim in one line, and what the controls came to; what is only a bound is not told."""
    claims = verdicts(found, "claim")
    if not claims:
        return f"{OPEN}: not run"
    text = "; ".join(f"{brief}: {word}" for brief, word in claims.items())
    controls = verdicts(found, "control")
    if controls:
        answers = {AGREES: "yes", DISAGREES: "no", OPEN: OPEN}
        text += ". Controls: " + "; ".join(f"{brief}: {answers[word]}" for brief, word in controls.items())
    return text
