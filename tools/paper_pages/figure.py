"""The figure of a page: paired differences with their intervals, the paper's own beside them."""

import io
from collections.abc import Sequence
from math import isnan

from fedlit.studies.figures import COLOURS
from fedlit.studies.wording import metric_factor, metric_label, short
from tools.paper_pages.evidence import Finding

OURS, THEIRS = COLOURS[0], COLOURS[1]
LINE = 0.34  # inches of a comparison
HEAD = 0.85  # inches above and below
FIXED = {"svg.hashsalt": "fedlit", "svg.fonttype": "none"}  # so that the same runs give the same file


def figure(found: Sequence[Finding]) -> str:
    """The figure as SVG; a panel for each question that was run."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    run = [finding for finding in found if finding.found.n]
    questions = list(dict.fromkeys(finding.question for finding in run))
    groups = [[finding for finding in run if finding.question == question] for question in questions]
    heights = [HEAD + LINE * len(group) for group in groups]
    with rc_context(FIXED):
        drawn = Figure(figsize=(7.2, sum(heights)), layout="constrained")
        panels = drawn.subplots(len(groups), 1, squeeze=False, height_ratios=heights)[:, 0]
        for panel, group in zip(panels, groups, strict=True):
            _draw(panel, group)
        written = io.StringIO()
        drawn.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def _draw(panel, group: Sequence[Finding]) -> None:
    """One question: a line for each column, the interval of ours, a cross for theirs."""
    question = group[0].question
    for place, finding in enumerate(group):
        factor = 1.0 if finding.measure.is_to_target else metric_factor(finding.measure)
        mean = factor * finding.found.mean
        if not isnan(finding.found.low):
            panel.plot([factor * finding.found.low, factor * finding.found.high], [place, place], color=OURS)
        panel.plot([mean], [place], "o", color=OURS, label="ours, 95 % interval" if place == 0 else None)
        if finding.paper is not None:
            panel.plot([finding.paper], [place], "x", color=THEIRS, label="paper" if place == 0 else None)
    panel.axvline(0, color="black", linewidth=0.8, linestyle=":")
    panel.set_yticks(range(len(group)), [finding.column for finding in group])
    panel.set_ylim(len(group) - 0.5, -0.5)
    panel.set_title(short(f"{question.row} less {question.over} ({question.kind})", 70), fontsize=10, loc="left")
    unit = "rounds to the target" if group[0].measure.is_to_target else metric_label(group[0].measure)
    panel.set_xlabel(unit, fontsize=8)
    panel.legend(fontsize=7, loc="best")
