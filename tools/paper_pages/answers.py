"""What every question of a page came to: its verdict, a figure, and the numbers by column."""

from collections.abc import Sequence
from dataclasses import replace

from fedlit.studies.measure import Measure
from fedlit.studies.tables import describe_difference
from tools.paper_pages.evidence import NOT_RUN, Finding, by_question, has_pairs, is_run, verdict_of, words_of
from tools.paper_pages.table import table

HEAD = ("where", "paper", "ours [95 % interval]", "by the rule")


def answers(page: str, found: Sequence[Finding]) -> list[str]:
    """Blocks of Markdown: a heading for each question, and what came of it.

    Args:
        page: Its name, by which its figures are called.
        found: Every question, in every column.
    """
    if not found:
        return [f"{NOT_RUN.capitalize()}."]
    blocks = []
    for place, group in enumerate(by_question(found), 1):
        blocks += [f"### {group[0].question.ask}", _in_one_line(group)]
        if has_pairs(group):
            blocks.append(f"![paired differences with 95 % intervals](figures/{figure_name(page, place)})")
        if is_run(group):
            blocks.append(table(HEAD, [_row(finding) for finding in group]))
    return blocks


def figure_name(page: str, place: int) -> str:
    """Of the figure of a question, the first of which is 1."""
    return f"{page}_{place}.svg"


def unit(measure: Measure) -> str:
    """What a difference is counted in; of which model, the two rows may not have in common."""
    if measure.is_to_target:
        return "rounds to the target"
    metric, _, data = measure.metric.partition("/")
    return replace(measure, metric=f"{metric}/client_on_{data.rpartition('_on_')[2]}").label


def _in_one_line(group: Sequence[Finding]) -> str:
    question = group[0].question
    what = unit(group[0].measure)
    text = f"{question.kind.capitalize()}: *{question.row}* minus *{question.over}*, {what[0].lower()}{what[1:]}"
    if question.kind == "bound":
        return f"{text}."
    return f"{text}. The least gain that matters is {question.least:g}. **{verdict_of(group).capitalize()}.**"


def _row(finding: Finding) -> tuple[str, str, str, str]:
    ours = NOT_RUN if finding.reading == NOT_RUN else "no pair reached it"
    if finding.found.n:
        ours = f"{describe_difference(finding.found, finding.measure)} (n = {finding.found.n})"
    theirs = "–" if finding.paper is None else f"{finding.paper:+.4g}"
    return finding.column, theirs, ours, _word(finding)


def _word(finding: Finding) -> str:
    if finding.question.kind == "bound":
        return "–"
    return words_of(finding.question).get(finding.reading, finding.reading)
