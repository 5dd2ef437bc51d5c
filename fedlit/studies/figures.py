"""The figures of a study as PNG and PDF: curves over rounds and bytes, clients at the end, rounds to the target.

Rows have colours that are distinct to the colour-blind (Okabe and Ito, https://jfly.uni-koeln.de/color/), and line
styles and markers of their own, for print without colours.
"""

from collections.abc import Callable, Iterator
from math import ceil, isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedlit.studies.grids import reached, targets_of
from fedlit.studies.results import Results
from fedlit.studies.series import Curve, curve_of, outcomes_of, points_of, rounds_to_target
from fedlit.studies.study import Cell
from fedlit.studies.wording import metric_label, short, steps, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")  # yellow is lost on white
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")
FIGURES = ("curves_over_rounds", "curves_over_bytes", "clients", "rounds_to_target")
BESIDE = 3  # panels beside each other
WIDTH = 3.4  # inches of a panel
HEIGHT = 2.7
NAME = 34  # characters of a name in a figure
BAND = "line: mean over seeds; band: ± standard deviation; (k/n): k of n seeds"
MOST_MARKERS = 10  # on a line

Draw = Callable[["Axes", Results, list[Cell]], None]


def draw_all(results: Results) -> Iterator[tuple[str, "Figure"]]:
    """Every figure of a study, with the name of its files."""
    yield "curves_over_rounds", _panels(results, _draw_rounds, HEIGHT, BAND)
    if any(cell.measure.is_by_round for cell in results.study.cells):
        yield "curves_over_bytes", _panels(results, _draw_bytes, HEIGHT, BAND)
    lanes = 0.7 + 0.42 * len(results.study.rows)
    if any(points_of(results, cell) for cell in results.study.cells):
        note = "a dot: a client of a run; box: quartiles and median over clients and seeds"
        yield "clients", _panels(results, _draw_clients, lanes, note, names=True)
    if any(cell.measure.target is not None for cell in results.study.cells):
        note = "bar: mean over the runs that reached the target, k of n; a dot: a run"
        yield "rounds_to_target", _panels(results, _draw_target, lanes, note, names=True)


def save(figure: "Figure", path: Path, kind: str) -> None:
    """One file; without the time, so that the same study gives the same file."""
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    figure.savefig(path, format=kind, dpi=150, metadata=metadata)
    figure.set_layout_engine("none")  # it is laid out now; a second time would cost as much again


def _panels(results: Results, draw: Draw, height: float, note: str, names: bool = False) -> "Figure":
    """A panel for each column, and below them what lines or rows are called.

    Args:
        results: Of a study.
        draw: Draws a panel.
        height: Inches of a panel.
        note: How to read it; stands at the foot.
        names: Whether rows stand by name at the axis; else they stand in a legend.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns = [column for column in results.study.columns if any(True for _ in _cells(results, column))]
    beside = min(BESIDE, len(columns))
    below = ceil(len(columns) / beside)
    rows = len(results.study.rows)
    margin = 0.075 * max(len(_label(results, row)) for row in results.study.rows) if names else 0.3
    legend = 0.25 if names else 0.25 + 0.22 * ceil(rows / max(1, beside))
    width = max(4.6, beside * WIDTH + margin)
    figure = Figure(figsize=(width, below * height + 0.35 + legend), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(below, beside, squeeze=False, sharey=names)
    for position, panel in enumerate(axes.flat):
        if position >= len(columns):
            panel.set_axis_off()
            continue
        draw(panel, results, list(_cells(results, columns[position])))
        panel.set_title(literal(short(columns[position], 44)), fontsize="medium")
    if not names:
        _legend(figure, axes, beside)
    figure.supxlabel(note, fontsize="small", color="0.35")
    return figure


def _cells(results: Results, column: str) -> Iterator[Cell]:
    for cell in results.study.cells:
        if cell.column == column:
            yield cell


def _label(results: Results, row: str) -> str:
    """A row by its name, and (k/n) where a cell of it has only k of n runs: its curve is not of the same seeds."""
    seeds = len(results.study.seeds)
    cells = [cell for cell in results.study.cells if cell.row == row]
    fewest = min(sum(1 for _ in outcomes_of(results, cell)) for cell in cells)
    name = literal(short(row, NAME))
    return name if fewest == seeds else f"{name} ({fewest}/{seeds})"


def literal(text: str) -> str:
    r"""Text that matplotlib prints as it is: between two dollars it would be taken for a formula.

    Example:
        >>> print(literal("$mu$ = 1"))
        \$mu\$ = 1
    """
    return text.replace("$", r"\$")


def _legend(figure: "Figure", axes: np.ndarray, beside: int) -> None:
    """One for all panels, above them, where nothing is drawn."""
    handles: dict[str, Any] = {}
    for panel in axes.flat:
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    if handles:
        columns = max(1, beside)
        figure.legend(
            list(handles.values()),
            list(handles),
            loc="outside upper center",
            ncols=columns,
            frameon=False,
            fontsize="small",
        )


def _draw_rounds(axes: "Axes", results: Results, cells: list[Cell]) -> None:
    for cell in cells:
        curve = curve_of(results, cell)
        if curve is not None:
            _draw_curve(axes, results, cell, curve, curve.rounds, 1.0)
    axes.set_xlabel(steps(cells))
    axes.locator_params(axis="x", integer=True)
    _label_metric(axes, cells)


def _draw_bytes(axes: "Axes", results: Results, cells: list[Cell]) -> None:
    cells = [cell for cell in cells if cell.measure.is_by_round]  # nothing is sent between local epochs
    curves = {cell: curve_of(results, cell) for cell in cells}
    most = max((curve.bytes[-1] for curve in curves.values() if curve is not None and curve.sends), default=1.0)
    factor, unit = unit_of(most)
    for cell, curve in curves.items():
        if curve is None:
            continue
        if curve.sends:
            _draw_curve(axes, results, cell, curve, curve.bytes, factor)
        else:
            _draw_silent(axes, results, cell, curve)
    axes.set_xlim(left=0)
    axes.set_xlabel(f"sent by all clients, up and down ({unit})")
    _label_metric(axes, cells)


def _draw_curve(
    axes: "Axes", results: Results, cell: Cell, curve: Curve, x: list[int] | list[float], factor: float
) -> None:
    at = np.asarray(x, dtype=float) / factor
    mean = np.asarray(curve.mean)
    number = results.study.rows.index(cell.row)
    colour = COLOURS[number % len(COLOURS)]
    axes.plot(
        at,
        mean,
        color=colour,
        linestyle=DASHES[number % len(DASHES)],
        marker=MARKERS[number % len(MARKERS)],
        markersize=4,
        markevery=max(1, len(at) // MOST_MARKERS),
        label=_label(results, cell.row),
    )
    if curve.n > 1:
        sd = np.asarray(curve.sd)
        axes.fill_between(at, mean - sd, mean + sd, color=colour, alpha=0.15, linewidth=0)
    axes.grid(color="0.92")


def _draw_silent(axes: "Axes", results: Results, cell: Cell, curve: Curve) -> None:
    """A row that sends nothing has no curve over bytes: its last value is a level."""
    number = results.study.rows.index(cell.row)
    axes.axhline(
        curve.mean[-1],
        color=COLOURS[number % len(COLOURS)],
        linestyle=DASHES[number % len(DASHES)],
        label=f"{_label(results, cell.row)} (sends nothing: last value)",
    )


def _draw_clients(axes: "Axes", results: Results, cells: list[Cell]) -> None:
    rng = np.random.default_rng(0)  # only where dots lie beside each other
    for cell in cells:
        number = results.study.rows.index(cell.row)
        values = [point.value for point in points_of(results, cell)]
        if not values:
            continue
        colour = COLOURS[number % len(COLOURS)]
        height = number + rng.uniform(-0.22, 0.22, len(values))
        axes.plot(values, height, MARKERS[number % len(MARKERS)], color=colour, alpha=0.45, markersize=3, mew=0)
        first, median, third = np.percentile(values, (25, 50, 75))
        axes.barh(number, third - first, left=first, height=0.55, fill=False)
        axes.vlines(median, number - 0.275, number + 0.275, color="black", linewidth=2)
    axes.use_sticky_edges = False  # an axis that ends where a bar does would hide the dots on its edge
    axes.margins(x=0.05)
    _name_rows(axes, results)
    _label_metric(axes, cells, on_x=True)


def _draw_target(axes: "Axes", results: Results, cells: list[Cell]) -> None:
    for cell in cells:
        number = results.study.rows.index(cell.row)
        rounds = [value for value in rounds_to_target(results, cell).values() if not isnan(value)]
        came, done = reached(results, cell)
        text = f"{came} of {done}" if done else "no run"
        mean = 0.0
        if rounds:
            mean = float(np.mean(rounds))
            axes.barh(number, mean, height=0.6, color=COLOURS[number % len(COLOURS)], alpha=0.6)
            axes.plot(rounds, [number] * len(rounds), MARKERS[number % len(MARKERS)], color="black", markersize=3.5)
        end = (max([mean, *rounds]), number)
        axes.annotate(text, end, xytext=(5, 0), textcoords="offset points", va="center", fontsize="small")
    axes.margins(x=0.25)
    axes.locator_params(axis="x", integer=True)
    axes.set_xlim(left=0)
    words = " or ".join(f"{target:g}" for target in targets_of(cells))
    axes.set_xlabel(f"rounds until {cells[0].measure.metric} is {words}")
    _name_rows(axes, results)


def _name_rows(axes: "Axes", results: Results) -> None:
    rows = results.study.rows
    axes.set_yticks(range(len(rows)), [_label(results, row) for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(color="0.92", axis="x")
    axes.set_axisbelow(True)


def _label_metric(axes: "Axes", cells: list[Cell], on_x: bool = False) -> None:
    label = "\n".join(dict.fromkeys(metric_label(cell.measure) for cell in cells))
    if on_x:
        axes.set_xlabel(label)
    else:
        axes.set_ylabel(label)
