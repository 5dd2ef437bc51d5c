"""Figures of the pages: paired differences with intervals, the paper's own beside them; accuracies of all methods."""

import io
from collections.abc import Mapping, Sequence
from math import isnan
from typing import Any

from fedlit.studies.charts import COLOURS
from fedlit.studies.results import Estimate
from fedlit.studies.tables import short
from tools.paper_pages.answers import unit
from tools.paper_pages.evidence import Finding

OURS, THEIRS = COLOURS[0], COLOURS[1]
LINE = 0.34  # inches of a comparison
BOARD_LINE = 0.2  # and of a method
HEAD = 0.85  # inches above and below
FIXED = {"svg.hashsalt": "fedlit", "svg.fonttype": "none"}  # so that the same runs give the same file


def figure(group: Sequence[Finding]) -> str:
    """What a question came to, as SVG: a line for each column that was run."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    run = [finding for finding in group if finding.found.n]
    with rc_context(FIXED):
        drawn = Figure(figsize=(7.2, HEAD + LINE * len(run)), layout="constrained")
        _draw(drawn.subplots(), run)
        return _as_svg(drawn)


def board_figure(settings: Mapping[str, Mapping[str, Estimate]], marked: Sequence[str]) -> str:
    """Accuracies of methods by setting, as SVG: a panel for each setting, a line for each method.

    Args:
        settings: Of each setting, the accuracy of each method.
        marked: Methods whose means are drawn through all lines, for others to be compared with.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    methods = list(dict.fromkeys(method for found in settings.values() for method in found))
    height = HEAD + BOARD_LINE * len(methods)
    with rc_context(FIXED):
        drawn = Figure(figsize=(1.6 + 2.4 * len(settings), height), layout="constrained")
        panels = drawn.subplots(1, len(settings), squeeze=False, sharey=True)[0]
        for panel, (setting, found) in zip(panels, settings.items(), strict=True):
            _draw_setting(panel, found, methods, marked)
            panel.set_title(setting, fontsize=10, loc="left")
        panels[0].set_yticks(range(len(methods)), methods, fontsize=8)
        panels[0].set_ylim(len(methods) - 0.5, -0.5)
        panels[0].legend(fontsize=7, loc="lower left")
        return _as_svg(drawn)


def _draw_setting(panel: Any, found: Mapping[str, Estimate], methods: Sequence[str], marked: Sequence[str]) -> None:
    for method, colour in zip(marked, COLOURS[1:], strict=False):
        if method in found:
            panel.axvline(100 * found[method].mean, color=colour, linewidth=0.9, linestyle="--", label=method)
    for method, one in found.items():
        place = methods.index(method)
        if not isnan(one.low):
            panel.plot([100 * one.low, 100 * one.high], [place, place], color=OURS)
        panel.plot([100 * one.mean], [place], "o", color=OURS, markersize=4)
    panel.set_xlabel("own accuracy in %", fontsize=8)
    panel.grid(axis="y", linewidth=0.3)


def _as_svg(drawn: Any) -> str:
    written = io.StringIO()
    drawn.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in written.getvalue().splitlines()) + "\n"


def _draw(panel: Any, group: Sequence[Finding]) -> None:
    """One question: a line for each column, the interval of ours, a cross for theirs."""
    question = group[0].question
    for place, finding in enumerate(group):
        factor = 1.0 if finding.measure.is_to_target else finding.measure.factor
        mean = factor * finding.found.mean
        if not isnan(finding.found.low):
            panel.plot([factor * finding.found.low, factor * finding.found.high], [place, place], color=OURS)
        panel.plot([mean], [place], "o", color=OURS, label="ours, 95 % interval" if place == 0 else None)
        if finding.paper is not None:
            panel.plot([finding.paper], [place], "x", color=THEIRS, label="paper" if place == 0 else None)
    panel.axvline(0, color="black", linewidth=0.8, linestyle=":")
    panel.set_yticks(range(len(group)), [finding.column for finding in group])
    panel.set_ylim(len(group) - 0.5, -0.5)
    panel.set_title(short(f"{question.row} less {question.over}", 70), fontsize=10, loc="left")
    better = "right" if group[0].measure.is_better_high else "left"
    panel.set_xlabel(f"{unit(group[0].measure)}; {better} is better", fontsize=8)
    panel.legend(fontsize=7, loc="best")
