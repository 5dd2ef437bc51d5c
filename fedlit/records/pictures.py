"""Pictures of a run: the partition, metrics over rounds, a confusion matrix."""

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

Points = list[tuple[int, float]]  # round and value
Lines = dict[str, Points]  # of every client
MOST_COUNTS = 20  # classes of a confusion matrix whose cells can hold a number
SPOKEN = {"acc": "accuracy", "r2": "R2", "f1": "F1", "iou": "IoU"}
MOST_LINES = 100  # in one panel; more would hide each other
MOST_COLUMNS = 3  # of panels
PANEL = (4.2, 3.6)  # inches
ENTRY = 1.0  # inches of a name in the panel that compares models
LETTERS = 11  # of a title, in an inch
TITLE_LINE = 0.22  # inches
DPI = 110
LARGEST_DOT = 220  # square points
BLUE = "#0072B2"  # these two are distinct to the colour-blind, too
ORANGE = "#D55E00"


def _new_figure(width: float, height: float, title: str = "") -> "Figure":
    """A canvas; a title makes it higher."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    lines = _wrapped(title, width)
    figure = Figure(figsize=(width, height + TITLE_LINE * len(lines)), layout="constrained")
    FigureCanvasAgg(figure)
    if lines:
        figure.suptitle("\n".join(lines), fontsize="medium")
    return figure


def draw_who_holds_what(data: "FederatedData", path: Path, title: str = "") -> None:
    """Clients and classes, or, where targets are no classes, clients alone."""
    if data.splits.num_classes:
        draw_partition(data.class_counts(), path, title)
    else:
        draw_sizes(data.assignment.sizes, path, title)


def draw_sizes(sizes: np.ndarray, path: Path, title: str = "") -> None:
    """How many training samples each client has, ``[K]``, as bars."""
    figure = _new_figure(min(max(4.0, 0.3 * len(sizes) + 1.5), 12.0), 3.2, title)
    axes = figure.subplots()
    axes.bar(range(len(sizes)), sizes, color=BLUE, width=0.8 if len(sizes) <= MOST_LINES else 1.0)
    axes.set_xlabel("client")
    axes.set_ylabel("training samples")
    heading = f"{int(sizes.sum())} training samples, {int(sizes.min())} to {int(sizes.max())} each"
    axes.set_title(heading, fontsize="medium")
    figure.savefig(path, dpi=DPI)


def _wrapped(title: str, width: float) -> list[str]:
    return wrap(title, int(width * LETTERS))


def draw_partition(counts: np.ndarray, path: Path, title: str = "") -> None:
    """Clients x classes: the area of a dot is the number of training samples, ``counts`` ``[K, C]``.

    Args:
        counts: Samples of each class at each client.
        path: Where to.
        title: Whose they are.
    """
    clients, classes = counts.shape
    if clients > 60 or classes > 50:  # dots would merge: a heat map instead
        figure = _new_figure(8, 6, title)
        axes = figure.subplots()
        image = axes.imshow(counts, aspect="auto", interpolation="nearest", cmap="viridis")
        figure.colorbar(image, label="training samples")
    else:
        figure = _new_figure(max(5.0, 0.45 * classes + 2.7), max(2.8, 0.3 * clients + 1.4), title)
        axes = figure.subplots()
        _draw_dots(axes, counts)
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    axes.set_title(f"{int(counts.sum())} training samples", fontsize="medium")
    figure.savefig(path, dpi=DPI)


def _draw_dots(axes: "Axes", counts: np.ndarray) -> None:
    """A dot for every cell that holds something, and a legend of sizes."""
    clients, classes = counts.shape
    k, c = np.nonzero(counts)
    most = max(int(counts.max()), 1)
    axes.scatter(c, k, s=LARGEST_DOT * counts[k, c] / most, color=BLUE, linewidths=0)
    for size in dot_sizes(most):
        axes.scatter([], [], s=LARGEST_DOT * size / most, color=BLUE, linewidths=0, label=f"{size}")
    axes.legend(
        title="samples",
        loc="upper left",
        bbox_to_anchor=(1.02, 1.0),
        frameon=False,
        labelspacing=1.0,
        borderaxespad=0.0,
    )
    axes.set_xticks(range(classes))
    axes.set_yticks(range(clients))
    axes.set_xlim(-0.7, classes - 0.3)
    axes.set_ylim(clients - 0.3, -0.7)
    axes.grid(color="0.92")
    axes.set_axisbelow(True)


def dot_sizes(most: int) -> list[int]:
    """Round numbers of samples up to the largest, and that one, for a legend.

    Example:
        >>> dot_sizes(437), dot_sizes(30), dot_sizes(2)
        ([50, 200, 437], [2, 10, 30], [1, 2])
    """
    steps = [digit * 10**power for power in range(len(str(most))) for digit in (1, 2, 5)]
    wanted = [max((step for step in steps if step <= most * share), default=1) for share in (0.15, 0.5)]
    return sorted({*wanted, most})


def draw_curves(
    metrics: Path,
    path: Path,
    over: Literal["round", "epoch"] = "round",
    metric: str = "acc",
    title: str = "",
    axis_label: str | None = None,
) -> None:
    """A metric over rounds from a metrics.csv: one panel per model and data, clients thin, their mean thick.

    Models that were measured in one round only, as in the stages of a programme, share a panel that compares them all.

    Args:
        metrics: A metrics.csv or epochs.csv; of the latter, the last local training.
        path: Where to.
        over: The column of the x axis.
        metric: The metric to draw.
        title: The title of the picture.
        axis_label: The label of the x axis; the column by default.
    """
    panels = _read_panels(metrics, over, metric)
    if not panels:
        return
    once = {name for name, lines in panels.items() if _is_one_round(lines)}
    compares = 0 < len(once) < len(panels)
    curves = panels
    if compares:
        curves = {name: lines for name, lines in panels.items() if name not in once}
    needed = ceil(ENTRY * (len(panels) + 1) / PANEL[0]) if compares else 0  # cells of the panel that compares
    columns = min(len(curves) + needed, MOST_COLUMNS)
    row, column = divmod(len(curves), columns)  # the first cell that is free
    if column and column + needed > columns:
        row, column = row + 1, 0
    rows = row + 1 if needed else ceil(len(curves) / columns)
    figure = _new_figure(PANEL[0] * columns, PANEL[1] * rows, title)
    grid = figure.add_gridspec(rows, columns)
    for position, (name, lines) in enumerate(curves.items()):
        axes = figure.add_subplot(grid[divmod(position, columns)])
        _draw_panel(axes, name, lines)
        axes.set_xlabel(axis_label or over)
        axes.set_ylabel(SPOKEN.get(metric, metric))
    if compares:
        _draw_comparison(figure.add_subplot(grid[row, column:]), panels)
    _share_heights(figure)
    figure.savefig(path, dpi=DPI)


def _share_heights(figure: "Figure") -> None:
    """All panels from the least to the most of any."""
    limits = [axes.get_ylim() for axes in figure.axes]
    for axes in figure.axes:
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))


def draw_confusion(path_of_counts: Path, path: Path, title: str = "") -> None:
    """What the samples of each class are taken for, from a confusion.csv: shares of a row, with counts if they fit."""
    with path_of_counts.open() as file:
        rows = [(int(row["label"]), int(row["predicted"]), int(row["samples"])) for row in csv.DictReader(file)]
    labels, predicted, samples = np.array(rows).T
    classes = labels.max() + 1
    counts = np.zeros((classes, classes), dtype=np.int64)
    counts[labels, predicted] = samples
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(max(3.8, 0.4 * classes + 1.2), 9.0)
    right = np.trace(counts) / max(counts.sum(), 1)
    lines = [
        *_wrapped(title, size),
        *_wrapped(f"global model: {right:.1%} of {counts.sum()} test samples are right", size),
    ]
    height = size + TITLE_LINE * (len(lines) - 1)
    figure = _new_figure(size, height)
    figure.set_layout_engine("none")  # the others would draw the many numbers several times
    axes = figure.add_axes((0.14, 0.11 * size / height, 0.81, 0.81 * size / height))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    if classes <= MOST_COUNTS:
        axes.set_xticks(range(classes))
        axes.set_yticks(range(classes))
        for label, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[label, column] > 0.5 else "black"
            axes.text(column, label, counts[label, column], ha="center", va="center", color=colour, fontsize="x-small")
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    axes.set_title("\n".join(lines), fontsize="medium")
    figure.savefig(path, dpi=DPI)


def _read_panels(metrics: Path, over: str, metric: str) -> dict[str, Lines]:
    """Every value of a metric in a metrics.csv: by model and data, then by client."""
    panels: dict[str, Lines] = defaultdict(lambda: defaultdict(list))
    with metrics.open() as file:
        for row in csv.DictReader(file):
            if row["metric"] == metric:
                title = f"{row['model']} on {row['data']}"
                point = (int(row[over]), float(row["value"]))
                line = panels[title][row["client"]]
                if line and point[0] <= line[-1][0]:  # another local training counts its epochs anew
                    line.clear()
                line.append(point)
    return panels


def _is_one_round(lines: Lines) -> bool:
    return len({round for points in lines.values() for round, _ in points}) == 1


def _draw_comparison(axes: "Axes", panels: dict[str, Lines]) -> None:
    """The last value of every model, side by side: clients thin, their mean thick."""
    for x, lines in enumerate(panels.values()):
        last = [points[-1][1] for points in lines.values()]
        mean = float(np.mean(last))
        if len(last) > 1:
            shown = last[:MOST_LINES]
            axes.plot([x] * len(shown), shown, "o", color=BLUE, alpha=0.35, markersize=4)
        axes.plot([x], [mean], "o", color=ORANGE)
        axes.annotate(
            f"{mean:.3f}",
            (x, mean),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            fontsize="small",
        )
    axes.set_xticks(range(len(panels)), [title.replace(" on ", "\non ") for title in panels])
    axes.set_xlim(-0.5, len(panels) - 0.3)
    axes.set_title("all models in the end")
    axes.grid(color="0.92", axis="y")


def _draw_panel(axes: "Axes", title: str, lines: Lines) -> None:
    by_round: dict[int, list[float]] = defaultdict(list)
    for points in lines.values():
        for round, value in points:
            by_round[round].append(value)
    rounds = sorted(by_round)
    marker = ""
    if len(rounds) < 3:
        marker = "o"
    mean = [float(np.mean(by_round[round])) for round in rounds]
    label = f"last {mean[-1]:.3f}"
    if len(lines) > 1:
        sizes = [len(by_round[round]) for round in rounds]
        label = f"{mean_of(sizes, len(lines))}, {label}"
        for points in list(lines.values())[:MOST_LINES]:
            (line,) = axes.plot(*zip(*points, strict=True), color=BLUE, alpha=0.25)
            line.set(linewidth=0.8, marker=marker, markersize=3)
        low = [min(by_round[round]) for round in rounds]
        high = [max(by_round[round]) for round in rounds]
        axes.fill_between(rounds, low, high, color=BLUE, alpha=0.12, label="range")
    axes.plot(rounds, mean, color=ORANGE, marker=marker, label=label)
    axes.set_title(title)
    axes.grid(color="0.92")
    axes.locator_params(axis="x", integer=True)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, -0.18),
        ncols=2,
        fontsize="small",
        frameon=False,
    )
