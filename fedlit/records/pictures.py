"""Pictures of a run: who holds what, and accuracy, or what else is measured, over rounds."""

import csv
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from fedlit.data import FederatedData

Points = list[tuple[int, float]]  # round and value
Lines = dict[str, Points]  # of every client
MOST_COUNTS = 20  # classes of a confusion matrix whose cells can hold a number
SPOKEN = {"acc": "accuracy", "r2": "R2", "f1": "F1", "iou": "IoU"}
MOST_LINES = 100  # in one panel; more would hide each other


def _new_figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def draw_who_holds_what(data: "FederatedData", path: Path) -> None:
    """Clients and classes, or, where targets are no classes, clients alone."""
    if data.splits.num_classes:
        draw_partition(data.class_counts(), path)
    else:
        draw_sizes(data.assignment.sizes, path)


def draw_sizes(sizes: np.ndarray, path: Path) -> None:
    """How many training samples each client has, ``[K]``, as bars."""
    figure = _new_figure(min(max(4.0, 0.3 * len(sizes) + 1.5), 12.0), 3.2)
    axes = figure.subplots()
    axes.bar(range(len(sizes)), sizes, color="tab:blue", width=0.8 if len(sizes) <= MOST_LINES else 1.0)
    axes.set_xlabel("client")
    axes.set_ylabel("training samples")
    axes.set_title(f"{int(sizes.sum())} training samples, {int(sizes.min())} to {int(sizes.max())} each")
    figure.savefig(path, dpi=110)


def draw_partition(counts: np.ndarray, path: Path) -> None:
    """Clients x classes: the area of a dot is the number of training samples, ``counts`` ``[K, C]``."""
    clients, classes = counts.shape
    if clients > 60 or classes > 50:  # dots would merge: a heat map instead
        figure = _new_figure(8, 6)
        axes = figure.subplots()
        image = axes.imshow(counts, aspect="auto", interpolation="nearest", cmap="viridis")
        figure.colorbar(image, label="training samples")
    else:
        figure = _new_figure(max(4.0, 0.45 * classes + 1.5), max(2.5, 0.3 * clients + 1.2))
        axes = figure.subplots()
        k, c = np.nonzero(counts)
        axes.scatter(c, k, s=220 * counts[k, c] / max(counts.max(), 1), color="tab:blue")
        axes.set_xticks(range(classes))
        axes.set_yticks(range(clients))
        axes.set_xlim(-0.7, classes - 0.3)
        axes.set_ylim(clients - 0.3, -0.7)
        axes.grid(color="0.92")
        axes.set_axisbelow(True)
    axes.set_xlabel("class")
    axes.set_ylabel("client")
    axes.set_title(f"{int(counts.sum())} training samples, at most {int(counts.max())} in a cell")
    figure.savefig(path, dpi=110)


def draw_curves(metrics: Path, path: Path, over: Literal["round", "epoch"] = "round", metric: str = "acc") -> None:
    """A metric over rounds from a metrics.csv: one panel per model and data, clients thin, their mean thick.

    Models that were measured in one round only, as in the stages of a programme, share a panel that compares them all.
    From an epochs.csv, `over` epochs: those of the last visit.
    """
    panels = _read_panels(metrics, over, metric)
    if not panels:
        return
    once = {title for title, lines in panels.items() if _is_one_round(lines)}
    compares = 0 < len(once) < len(panels)
    curves = panels
    if compares:
        curves = {title: lines for title, lines in panels.items() if title not in once}
    widths = [4.2] * len(curves)
    width = 4.2 * len(curves)
    if compares:
        widths.append(1.2 * len(panels) + 1)
        width += 1.2 * len(panels) + 1
    figure = _new_figure(width, 3.6)
    all_axes = np.atleast_1d(figure.subplots(1, len(widths), sharey=True, width_ratios=widths))
    for axes, (title, lines) in zip(all_axes, curves.items(), strict=False):
        _draw_panel(axes, title, lines)
        axes.set_xlabel(over)
    if compares:
        _draw_comparison(all_axes[-1], panels)
    all_axes[0].set_ylabel(SPOKEN.get(metric, metric))
    figure.savefig(path, dpi=110)


def draw_confusion(path_of_counts: Path, path: Path) -> None:
    """What the samples of each class are taken for, from a confusion.csv: shares of a row, with counts if they fit."""
    with path_of_counts.open() as file:
        rows = [(int(row["label"]), int(row["predicted"]), int(row["samples"])) for row in csv.DictReader(file)]
    labels, predicted, samples = np.array(rows).T
    classes = labels.max() + 1
    counts = np.zeros((classes, classes), dtype=np.int64)
    counts[labels, predicted] = samples
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    size = min(max(3.5, 0.4 * classes + 1.2), 9.0)
    figure = _new_figure(size, size)
    figure.set_layout_engine("none")  # the others would draw the many numbers several times
    axes = figure.add_axes((0.14, 0.11, 0.81, 0.81))
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    if classes <= MOST_COUNTS:
        axes.set_xticks(range(classes))
        axes.set_yticks(range(classes))
        for label, column in zip(*np.nonzero(counts), strict=True):
            colour = "white" if shares[label, column] > 0.5 else "black"
            axes.text(column, label, counts[label, column], ha="center", va="center", color=colour, fontsize="x-small")
    axes.set_xlabel("taken for")
    axes.set_ylabel("class")
    right = np.trace(counts) / max(counts.sum(), 1)
    axes.set_title(f"global model: {right:.1%} of {counts.sum()} test samples are right", fontsize="medium")
    figure.savefig(path, dpi=110)


def _read_panels(metrics: Path, over: str, metric: str) -> dict[str, Lines]:
    """Every value of a metric in a metrics.csv: by model and data, then by client."""
    panels: dict[str, Lines] = defaultdict(lambda: defaultdict(list))
    with metrics.open() as file:
        for row in csv.DictReader(file):
            if row["metric"] == metric:
                title = f"{row['model']} on {row['data']}"
                point = (int(row[over]), float(row["value"]))
                line = panels[title][row["client"]]
                if line and point[0] <= line[-1][0]:  # another visit counts its epochs anew
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
            axes.plot([x] * len(shown), shown, "o", color="tab:blue", alpha=0.35, markersize=4)
        axes.plot([x], [mean], "o", color="tab:red")
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
        label = f"mean of {len(lines)} clients, {label}"
        for points in list(lines.values())[:MOST_LINES]:
            (line,) = axes.plot(*zip(*points, strict=True), color="tab:blue", alpha=0.25)
            line.set(linewidth=0.8, marker=marker, markersize=3)
        low = [min(by_round[round]) for round in rounds]
        high = [max(by_round[round]) for round in rounds]
        axes.fill_between(rounds, low, high, color="tab:blue", alpha=0.12, label="range")
    axes.plot(rounds, mean, color="tab:red", marker=marker, label=label)
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
