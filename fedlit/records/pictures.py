"""Figures of a run: who holds what, metrics over rounds, and the confusion matrix.

Every figure has a fixed layout, in inches: matplotlib's layout engines draw a figure several times to find one.
"""

import csv
from collections import defaultdict
from math import ceil
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.records.rows import mean_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedlit.data import FederatedData

Lines = dict[str, list[tuple[int, float]]]  # of every client: round and value
NAMES = {"acc": "Accuracy", "r2": "R²", "f1": "F1", "iou": "IoU", "mse": "Mean squared error"}
PERCENT = ("acc",)  # metrics that a paper prints in per cent
DATA = {"own": "own data", "own_test": "own test data", "pooled": "pooled test data", "unseen": "unseen clients"}
MOST_CELLS = 25  # in a row or column, whose numbers can be read
MOST_LINES = 100  # in one panel; more would hide each other
MOST_COLUMNS = 3  # of panels
PANEL = (4.0, 3.4)  # inches
LEFT, RIGHT, TOP, BOTTOM = 0.7, 0.2, 0.35, 0.5  # inches around the axes
LEGEND = 0.3  # inches below a panel
LETTERS = 11  # of a title, in an inch
TITLE_LINE = 0.22  # inches
MOST_INCHES = 9.0
DPI = 110
BLUE = "#0072B2"  # these two are distinct to the colour-blind, too
ORANGE = "#D55E00"


def spoken_metric(metric: str, data: str | None = None) -> str:
    """A metric as an axis names it.

    Example:
        >>> spoken_metric("acc", "own"), spoken_metric("loss")
        ('Accuracy on own data (%)', 'Loss')
    """
    name = NAMES.get(metric, metric[:1].upper() + metric[1:].replace("_", " "))
    on = "" if data is None else f" on {DATA.get(data, data)}"
    return f"{name}{on}{' (%)' if metric in PERCENT else ''}"


def _new_figure(width: float, height: float, title: str) -> tuple["Figure", float]:
    """A canvas with a title above it, and its height with the title."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = wrap(title, int(width * LETTERS))
    height += TITLE_LINE * len(lines)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
    if lines:
        figure.suptitle("\n".join(lines), fontsize="medium", y=1 - 0.08 / height, va="top")
    return figure, height


def _single_axes(width: float, height: float, title: str, right: float = RIGHT) -> tuple["Figure", "Axes"]:
    """A figure with one panel."""
    figure, whole = _new_figure(width, height, title)
    area = (LEFT / width, BOTTOM / whole, (width - LEFT - right) / width, (height - BOTTOM - TOP) / whole)
    return figure, figure.add_axes(area)


def draw_who_holds_what(data: "FederatedData", path: Path, title: str = "") -> None:
    """Draw the training samples of every client, by class where targets are classes."""
    if data.splits.num_classes:
        draw_partition(data.class_counts(), path, title)
    else:
        draw_sizes(data.assignment.sizes, path, title)


def draw_sizes(sizes: np.ndarray, path: Path, title: str = "") -> None:
    """Draw how many training samples each client has, ``[K]``, as bars."""
    figure, axes = _single_axes(min(max(4.0, 0.3 * len(sizes) + 1.5), 12.0), 3.2, title)
    axes.bar(range(len(sizes)), sizes, color=BLUE)
    axes.set_xlabel("Client")
    axes.set_ylabel("Training samples")
    axes.set_title(f"{int(sizes.sum())} samples, {int(sizes.min())} to {int(sizes.max())} each", fontsize="medium")
    figure.savefig(path, dpi=DPI)


def draw_partition(counts: np.ndarray, path: Path, title: str = "") -> None:
    """Draw clients x classes: the number of training samples, ``counts`` ``[K, C]``."""
    clients, classes = counts.shape
    width, height = (min(size, MOST_INCHES) for size in (max(4.2, 0.45 * classes + 0.9), max(2.6, 0.3 * clients + 0.9)))
    figure, axes = _single_axes(width, height, title)
    _draw_cells(axes, counts, counts / max(counts.max(), 1))
    axes.set_xlabel("Class")
    axes.set_ylabel("Client")
    axes.set_title(f"{int(counts.sum())} training samples, at most {int(counts.max())} in a cell", fontsize="medium")
    figure.savefig(path, dpi=DPI)


def _draw_cells(axes: "Axes", counts: np.ndarray, shares: np.ndarray) -> None:
    """Draw a table of counts: shades show shares, and numbers stand in the cells where they fit."""
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest", aspect="auto")
    if max(counts.shape) > MOST_CELLS:
        return
    axes.set_yticks(range(counts.shape[0]))
    axes.set_xticks(range(counts.shape[1]))
    for row, column in zip(*np.nonzero(counts), strict=True):
        colour = "white" if shares[row, column] > 0.5 else "black"
        axes.text(column, row, counts[row, column], ha="center", va="center", color=colour, fontsize="x-small")


def draw_curves(
    metrics: Path,
    path: Path,
    over: Literal["round", "epoch"] = "round",
    metric: str = "acc",
    title: str = "",
    axis_label: str | None = None,
) -> None:
    """Draw a metric over rounds: one panel per model and data, clients thin, their mean thick.

    `metrics` is a metrics.csv or epochs.csv; of the latter, the last local training is drawn, over the column `epoch`.
    Nothing is written where the metric was never measured.
    """
    panels = _read_panels(metrics, over, metric)
    if not panels:
        return
    columns = 2 if len(panels) == 4 else min(len(panels), MOST_COLUMNS)
    rows = ceil(len(panels) / columns)
    width, height = PANEL[0] * columns, PANEL[1] * rows
    figure, whole = _new_figure(width, height, title)
    shared: Axes | None = None
    for position, ((model, data), lines) in enumerate(panels.items()):
        row, column = divmod(position, columns)
        x, y = column * PANEL[0] + LEFT, height - (row + 1) * PANEL[1] + BOTTOM + LEGEND
        size = (PANEL[0] - LEFT - RIGHT) / width, (PANEL[1] - TOP - BOTTOM - LEGEND) / whole
        axes = figure.add_axes((x / width, y / whole, *size), sharey=shared)
        shared = shared or axes
        _draw_lines(axes, lines, "{:.1f} %" if metric in PERCENT else "{:.4g}")
        axes.set_title(f"{model[:1].upper()}{model[1:]} model", fontsize="medium")
        axes.set_xlabel((axis_label or over).capitalize())
        axes.set_ylabel(spoken_metric(metric, data))
    figure.savefig(path, dpi=DPI)


def _read_panels(metrics: Path, over: str, metric: str) -> dict[tuple[str, str], Lines]:
    """Every value of a metric in a metrics.csv, by model and data, then by client."""
    panels: dict[tuple[str, str], Lines] = defaultdict(lambda: defaultdict(list))
    factor = 100 if metric in PERCENT else 1
    with metrics.open() as file:
        for row in csv.DictReader(file):
            if row["metric"] == metric:
                line = panels[row["model"], row["data"]][row["client"]]
                x = int(row[over])
                if line and x <= line[-1][0]:  # another local training counts its epochs anew
                    line.clear()
                line.append((x, factor * float(row["value"])))
    return panels


def _draw_lines(axes: "Axes", lines: Lines, number: str) -> None:
    by_round: dict[int, list[float]] = defaultdict(list)
    for points in lines.values():
        for round, value in points:
            by_round[round].append(value)
    rounds = sorted(by_round)
    marker = "o" if len(rounds) < 3 else ""
    mean = [float(np.mean(by_round[round])) for round in rounds]
    label = f"last {number.format(mean[-1])}"
    if len(lines) > 1:
        label = f"{mean_of((len(by_round[round]) for round in rounds), len(lines))}, {label}"
        for points in list(lines.values())[:MOST_LINES]:
            x, y = zip(*points, strict=True)
            axes.plot(x, y, color=BLUE, alpha=0.25, linewidth=0.8, marker=marker, markersize=3)
        low, high = ([extreme(by_round[round]) for round in rounds] for extreme in (min, max))
        axes.fill_between(rounds, low, high, color=BLUE, alpha=0.12, label="range")
    axes.plot(rounds, mean, color=ORANGE, marker=marker, label=label)
    axes.grid(color="0.92")
    axes.locator_params(axis="x", integer=True)
    if len(rounds) < 3:
        axes.set_xticks(rounds)
    below = -(BOTTOM - 0.05) / (PANEL[1] - TOP - BOTTOM - LEGEND)
    axes.legend(
        loc="upper center", bbox_to_anchor=(0.5, below), ncols=2, fontsize="small", frameon=False, borderaxespad=0.0
    )


def draw_confusion(counted: Path, path: Path, title: str = "") -> None:
    """Draw what the samples of each class are predicted as, from a confusion.csv: shares of a row, and counts."""
    labels, predicted, samples = np.loadtxt(counted, dtype=np.int64, delimiter=",", skiprows=1, unpack=True)
    classes = labels.max() + 1
    counts = np.zeros((classes, classes), dtype=np.int64)
    counts[labels, predicted] = samples
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(max(4.2, 0.4 * classes + 1.4), MOST_INCHES)
    figure, axes = _single_axes(size, size - LEFT - RIGHT + BOTTOM + TOP, title)
    _draw_cells(axes, counts, shares)
    axes.set_xlabel("Predicted class")
    axes.set_ylabel("True class")
    accuracy = np.trace(counts) / max(counts.sum(), 1)
    axes.set_title(f"Global model: {accuracy:.1%} of {counts.sum()} test samples correct", fontsize="medium")
    figure.savefig(path, dpi=DPI)
