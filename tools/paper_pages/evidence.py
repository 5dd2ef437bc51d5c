"""From runs to a verdict, by a rule that was fixed before the runs.

A gain is the mean of the paired differences over seeds, in the direction that is better. By its 95 % interval:

    agrees           low > 0
    disagrees        high < least, the smallest gain that matters (and not low > 0)
    inconclusive     otherwise, and wherever a pair of seeds is missing or did not reach its target
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fedlit.studies.measure import Measure
from fedlit.studies.results import Estimate
from fedlit.studies.study import Cell, read_study
from tools.paper_pages.recorded import RecordedResults, recorded_results
from tools.paper_pages.source import Kind, Question, RunSet, Source

AGREES = "agrees"
DISAGREES = "disagrees"
OPEN = "inconclusive"
DEPENDS = "depends"  # some comparisons agree, others disagree
NOT_RUN = "not run yet"
YES_OR_NO = {AGREES: "yes", DISAGREES: "no"}


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
    """The table of a set's runs, if it was run."""
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


@dataclass(frozen=True)
class Evidence:
    """What all sets of runs of one study found together.

    Attributes:
        study: As `fedlit compare` takes it.
        results: A cell has the runs of the first set in which it was run.
        made_by: That set, by row and column; nothing of what was not run.
    """

    study: str
    results: RecordedResults
    made_by: Mapping[tuple[str, str], RunSet]


def evidence(root: Path, sets: Sequence[RunSet]) -> list[Evidence]:
    """Of every study of the sets, in their order, also where nothing was run."""
    by_study: dict[str, list[RunSet]] = {}
    for runs in sets:
        by_study.setdefault(runs.study, []).append(runs)
    return [_together(root, study, its) for study, its in by_study.items()]


def _together(root: Path, study: str, sets: Sequence[RunSet]) -> Evidence:
    asked = read_study(root / "configs" / study)
    results = RecordedResults(asked, {}, {}, [])
    made_by: dict[tuple[str, str], RunSet] = {}
    lines = []
    for runs in sets:
        path = runs_csv(root, runs)
        if not path.is_file():
            continue
        found = recorded_results(asked, path)
        new = [line for line in found.lines if (line["row"], line["column"]) not in made_by]
        made_by |= {(line["row"], line["column"]): runs for line in new}
        lines += new
        results = replace(found, lines=lines)
    _check_comparable(made_by)
    return Evidence(study, results, made_by)


def _check_comparable(made_by: Mapping[tuple[str, str], RunSet]) -> None:
    """Rows of a column are compared, so they were run at one size."""
    first: dict[str, RunSet] = {}
    for (row, column), runs in made_by.items():
        other = first.setdefault(column, runs)
        if other.options_of_all != runs.options_of_all:
            raise ValueError(f"{column!r} is of {other.name} and, for {row!r}, of {runs.name}, which is another size.")


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


def findings(source: Source, pieces: Sequence[Evidence]) -> list[Finding]:
    """What every question came to, in every column; nothing where nothing was run."""
    if not any(piece.made_by for piece in pieces):
        return []
    found = []
    for question in source.questions:
        for column in question.columns:
            found.append(_finding(question, column, pieces))
    return found


def _finding(question: Question, column: str, pieces: Sequence[Evidence]) -> Finding:
    results, row, over = _asked(question, column, pieces)
    difference = results.difference(row, over)
    paper = None
    if row.paper is not None and over.paper is not None:
        paper = row.paper - over.paper
    word = NOT_RUN
    if _was_run(results, row) and _was_run(results, over):
        word = reading(difference, row.measure, question, len(results.study.seeds))
    return Finding(question, column, row.measure, difference, paper, word)


def _asked(question: Question, column: str, pieces: Sequence[Evidence]) -> tuple[RecordedResults, Cell, Cell]:
    """The two cells of a question, in the study that has them."""
    for piece in pieces:
        row = piece.results.study.cell(question.row, column)
        over = piece.results.study.cell(question.over, column)
        if row is not None and over is not None:
            return piece.results, row, over
    raise ValueError(f"no study has the cells {question.row!r} and {question.over!r} in {column!r}.")


def _was_run(results: RecordedResults, cell: Cell) -> bool:
    """Whether some run of a cell was made, done or failed, whether or not it reached a target."""
    runs = results.runs
    of_cell = (runs["row"] == cell.row) & (runs["column"] == cell.column)
    return bool((runs.loc[of_cell, "status"] != "missing").any())


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
    factor = 1.0 if measure.is_to_target else measure.factor
    if measure.is_better_high:
        return factor * found.low, factor * found.high
    return -factor * found.high, -factor * found.low


def verdict(readings: Iterable[str]) -> str:
    """One word over several comparisons: more than half of them say so, and none says the opposite.

    Example:
        >>> verdict([AGREES, AGREES, OPEN]), verdict([AGREES, OPEN]), verdict([DISAGREES]), verdict([NOT_RUN])
        ('agrees', 'inconclusive', 'disagrees', 'not run yet')
        >>> verdict([AGREES, AGREES, DISAGREES])
        'depends'
    """
    run = _run(readings)
    agree = run.count(AGREES)
    disagree = run.count(DISAGREES)
    if not run:
        return NOT_RUN
    if agree and disagree:
        return DEPENDS
    if 2 * agree > len(run):
        return AGREES
    if 2 * disagree > len(run):
        return DISAGREES
    return OPEN


def _run(readings: Iterable[str]) -> list[str]:
    return [reading for reading in readings if reading != NOT_RUN]


def by_question(found: Sequence[Finding]) -> list[list[Finding]]:
    """Findings of one question together, in the order of the questions."""
    groups: dict[Question, list[Finding]] = {}
    for finding in found:
        groups.setdefault(finding.question, []).append(finding)
    return list(groups.values())


def is_run(group: Sequence[Finding]) -> bool:
    """Whether something of a question was run."""
    return any(finding.reading != NOT_RUN for finding in group)


def has_pairs(group: Sequence[Finding]) -> bool:
    """Whether there is a difference to show: runs may be done and reach no target."""
    return any(finding.found.n for finding in group)


def verdict_of(group: Sequence[Finding]) -> str:
    """What a question came to, in the words of its kind."""
    return _in_words(_run(finding.reading for finding in group), words_of(group[0].question))


def words_of(question: Question) -> Mapping[str, str]:
    """A claim agrees or disagrees; a control is answered."""
    return YES_OR_NO if question.kind == "control" else {}


def verdicts(found: Sequence[Finding], kind: Kind) -> dict[str, str]:
    """By the brief of every claim (or control) of which something was run."""
    groups = [group for group in by_question(found) if group[0].question.kind == kind and is_run(group)]
    return {group[0].question.brief: verdict_of(group) for group in groups}


def _in_words(readings: Sequence[str], words: Mapping[str, str]) -> str:
    """A verdict in the words of its kind, and the counts where comparisons are not of one mind.

    Example:
        >>> _in_words([AGREES, AGREES, DISAGREES, OPEN], YES_OR_NO)
        'depends (yes in 2, no in 1 of 4)'
        >>> _in_words([AGREES, AGREES, OPEN], {}), _in_words([AGREES, OPEN], {}), _in_words([OPEN, OPEN], {})
        ('agrees in 2 of 3', 'inconclusive (agrees in 1 of 2)', 'inconclusive')
    """
    word = verdict(readings)
    if len(set(readings)) < 2:
        return words.get(word, word)
    counts = {side: readings.count(side) for side in (AGREES, DISAGREES)}
    text = ", ".join(f"{words.get(side, side)} in {count}" for side, count in counts.items() if count)
    text += f" of {len(readings)}"
    return text if word in counts else f"{word} ({text})"


def verdict_line(found: Sequence[Finding]) -> str:
    """The verdict of every claim in one line, and what the controls came to; what is only a bound is left out."""
    claims = verdicts(found, "claim")
    if not claims:
        return f"{OPEN}: not run"
    text = _line(claims)
    controls = verdicts(found, "control")
    if controls:
        text += f". Controls: {_line(controls)}"
    return text


def _line(words: Mapping[str, str]) -> str:
    return "; ".join(f"{brief}: {word}" for brief, word in words.items())
