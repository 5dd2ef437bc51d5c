"""The figures of a study as PNG and PDF: curves over rounds and bytes, and clients in the end.

Rows have colours that are distinct to the colour-blind (Okabe and Ito, https://jfly.uni-koeln.de/color/), and line
styles and markers of their own, for print without colours.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from fedlit.studies.outcome import Outcome
from fedlit.studies.results import Results, client_values
from fedlit.studies.study import Cell
from fedlit.studies.tables import short, unit_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")  # yellow is lost on white
DASHES = ("-", "--", "-.", ":")
MARKERS = ("o", "s", "^", "D", "v")
FIGURES = {
    "curves_over_rounds": "Curves over rounds",
    "curves_over_bytes": "Curves over communication",
    "clients": "Clients in the end",
}
BESIDE = 3  # panels beside each other
WIDTH = 3.4  # inches of a panel
HEIGHT = 2.7
NAME = 34  # characters of a name in a figure
MOST_MARKERS = 10  # on a line
Draw = Callable[["Axes", Results, Sequence[Cell]], None]


def draw_all(results: Results) -> Iterator[tuple[str, "Figure"]]:
    """Every figure of a study, with the name of its files."""
    cells = results.study.cells
    band = "line: mean over seeds; band: ± standard deviation; (k/n): k of n seeds"
    yield "curves_over_rounds", _panels(results, partial(_draw_curves, over="rounds"), HEIGHT, band)
    if any(cell.measure.is_by_round for cell in cells):
        yield "curves_over_bytes", _panels(results, partial(_draw_curves, over="bytes"), HEIGHT, band)
    if results.summary["worst_client"].notna().any():
        note = "a dot: a client of a run; box: quartiles and median over clients and seeds"
        height = 0.7 + 0.42 * len(results.study.rows)
        yield "clients", _panels(results, _draw_clients, height, note, names=True)


def save(figure: "Figure", path: Path, kind: str) -> None:
    """One file; without the time, so that the same study gives the same file."""
    metadata = {"CreationDate": None} if kind == "pdf" else {"Software": None}
    figure.savefig(path, format=kind, dpi=150, metadata=metadata)
    figure.set_layout_engine("none")  # it is laid out now; a second time would cost as much again


def _panels(results: Results, draw: Draw, height: float, note: str, names: bool = False) -> "Figure":
    """A panel for each column, a note at the foot, and rows by `names` at the axis or in a legend above."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    columns, rows = results.study.columns, results.study.rows
    beside = min(BESIDE, len(columns))
    below = ceil(len(columns) / beside)
    margin = 0.075 * min(NAME, max(map(len, rows))) if names else 0.3
    legend = 0.25 if names else 0.25 + 0.22 * ceil(len(rows) / beside)
    size = (max(4.6, beside * WIDTH + margin), below * height + 0.35 + legend)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(below, beside, squeeze=False, sharey=names)
    handles: dict[str, Any] = {}
    for panel, column in zip(axes.flat, columns, strict=False):
        draw(panel, results, [cell for cell in results.study.cells if cell.column == column])
        panel.set_title(short(column, 44), fontsize="medium")
        for handle, label in zip(*panel.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
        if names:
            panel.set_yticks(range(len(rows)), [_label(results, row) for row in rows])
            panel.set_ylim(len(rows) - 0.4, -0.6)
    for panel in axes.flat[len(columns) :]:
        panel.set_axis_off()
    if handles:
        places: dict[str, Any] = {"loc": "outside upper center", "ncols": beside, "frameon": False, "fontsize": "small"}
        figure.legend(list(handles.values()), list(handles), **places)
    figure.supxlabel(note, fontsize="small", color="0.35")
    return figure


def _label(results: Results, row: str) -> str:
    """A row by its name, and (k/n) where a cell of it has only k of n runs: its curve is not of the same seeds."""
    seeds = len(results.study.seeds)
    fewest = min(len(results.outcomes_of(cell)) for cell in results.study.cells if cell.row == row)
    name = short(row, NAME)
    return name if fewest == seeds else f"{name} ({fewest}/{seeds})"


def _look(results: Results, cell: Cell) -> tuple[int, str, str]:
    """The number of a cell's row, its colour and its marker."""
    number = results.study.rows.index(cell.row)
    return number, COLOURS[number % len(COLOURS)], MARKERS[number % len(MARKERS)]


def _draw_curves(axes: "Axes", results: Results, cells: Sequence[Cell], over: str) -> None:
    """Mean and standard deviation over runs; over bytes, a row without communication is a level, its last value."""
    if over == "bytes":
        cells = [cell for cell in cells if cell.measure.is_by_round]  # nothing is sent between local epochs
    curves = {cell: curve_of(results, cell) for cell in cells if results.outcomes_of(cell)}
    most = max((curve["bytes"].iloc[-1] for curve in curves.values()), default=0.0)
    factor, unit = unit_of(most)
    for cell, curve in curves.items():
        number, colour, marker = _look(results, cell)
        style: dict[str, Any] = {"color": colour, "linestyle": DASHES[number % len(DASHES)]}
        if over == "bytes" and not curve["bytes"].any():
            label = f"{_label(results, cell.row)} (no communication: last value)"
            axes.axhline(curve["mean"].iloc[-1], label=label, **style)
            continue
        x = curve["bytes"] / factor if over == "bytes" else curve.index
        every = max(1, len(curve) // MOST_MARKERS)
        label = _label(results, cell.row)
        axes.plot(x, curve["mean"], marker=marker, markersize=4, markevery=every, label=label, **style)
        if curve["sd"].notna().any():
            low, high = curve["mean"] - curve["sd"], curve["mean"] + curve["sd"]
            axes.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.grid(color="0.92")
    if over == "bytes":
        axes.set_xlim(left=0)
        axes.set_xlabel(f"Communication of all clients, up and down ({unit})")
    else:
        axes.locator_params(axis="x", integer=True)
        axes.set_xlabel(_joined((cell.measure.step.capitalize() for cell in cells), " or "))
    axes.set_ylabel(_joined(cell.measure.label for cell in cells))


def curve_of(results: Results, cell: Cell) -> pd.DataFrame:
    """Mean and standard deviation over a cell's runs, as shown, and bytes, in the rounds that all have."""
    curves = []
    sent = []
    for _, outcome in results.outcomes_of(cell):
        curves.append(outcome.curve(cell.measure).dropna() * cell.measure.factor)
        sent.append(bytes_up_to(outcome, curves[-1].index))
    over_runs = pd.concat(curves, axis=1, join="inner")
    communication = pd.concat(sent, axis=1, join="inner").mean(axis=1)
    return pd.DataFrame({"mean": over_runs.mean(axis=1), "sd": over_runs.std(axis=1, ddof=1), "bytes": communication})


def bytes_up_to(outcome: Outcome, rounds: pd.Index) -> pd.Series:
    """All bytes up to and with each of some rounds; a round without communication adds nothing."""
    total = outcome.ledger.groupby("round")["bytes"].sum().cumsum()
    return total.reindex(rounds, method="ffill").fillna(0).astype(float)


def _draw_clients(axes: "Axes", results: Results, cells: Sequence[Cell]) -> None:
    rng = np.random.default_rng(0)  # only where dots lie beside each other
    for cell in cells:
        number, colour, marker = _look(results, cell)
        of_runs = [client_values(outcome, cell.measure) for _, outcome in results.outcomes_of(cell)]
        found = [values for values in of_runs if values is not None]
        if not found:
            continue
        values = pd.concat(found).to_numpy() * cell.measure.factor
        height = number + rng.uniform(-0.22, 0.22, len(values))
        axes.plot(values, height, marker, color=colour, alpha=0.45, markersize=3, mew=0)
        first, median, third = np.percentile(values, (25, 50, 75))
        axes.barh(number, third - first, left=first, height=0.55, fill=False)
        axes.vlines(median, number - 0.275, number + 0.275, color="black", linewidth=2)
    axes.use_sticky_edges = False  # an axis that ends where a bar does would hide the dots on its edge
    axes.margins(x=0.05)
    axes.grid(color="0.92", axis="x")
    axes.set_xlabel(_joined(cell.measure.label for cell in cells))


def _joined(labels: Iterable[str], between: str = "\n") -> str:
    return between.join(dict.fromkeys(labels))
