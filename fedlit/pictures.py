"""Pictures of a run: who holds what, and accuracy over rounds."""

import csv
from collections import defaultdict
from pathlib import Path

import numpy as np


def _new_figure(width: float, height: float):
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    return figure


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


def draw_curves(metrics: Path, path: Path) -> None:
    """Accuracy over rounds from a metrics.csv: one panel per model and data, clients thin, their mean thick."""
    panels: dict[str, dict[str, list[tuple[int, float]]]] = defaultdict(lambda: defaultdict(list))
    with metrics.open() as file:
        for row in csv.DictReader(file):
            if row["metric"] == "acc":
                panels[f"{row['model']} on {row['data']}"][row["client"]].append(
                    (int(row["round"]), float(row["value"]))
                )
    if not panels:
        return
    figure = _new_figure(4.2 * len(panels), 3.6)
    for axes, (title, lines) in zip(
        np.atleast_1d(figure.subplots(1, len(panels), sharex=True, sharey=True)), panels.items(), strict=True
    ):
        _draw_panel(axes, title, lines)
    np.atleast_1d(figure.axes)[0].set_ylabel("accuracy")
    figure.savefig(path, dpi=110)


def _draw_panel(axes, title: str, lines: dict[str, list[tuple[int, float]]]) -> None:
    by_round: dict[int, list[float]] = defaultdict(list)
    for points in lines.values():
        for round, value in points:
            by_round[round].append(value)
    rounds = sorted(by_round)
    marker = "o" if len(rounds) < 3 else None
    if len(lines) > 1:
        for points in list(lines.values())[:100]:
            axes.plot(
                *zip(*points, strict=True), color="tab:blue", alpha=0.25, linewidth=0.8, marker=marker, markersize=3
            )
        low, high = [min(by_round[r]) for r in rounds], [max(by_round[r]) for r in rounds]
        axes.fill_between(rounds, low, high, color="tab:blue", alpha=0.12, label="range")
    mean = [float(np.mean(by_round[r])) for r in rounds]
    label = f"mean of {len(lines)} clients, last {mean[-1]:.3f}" if len(lines) > 1 else f"last {mean[-1]:.3f}"
    axes.plot(rounds, mean, color="tab:red", marker=marker, label=label)
    axes.set_title(title)
    axes.set_xlabel("round")
    axes.grid(color="0.92")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, fontsize="small", frameon=False)
