"""`python -m tools.readme_figure studies/personalised docs/compare.png` draws the figure of the README.

The folder is the one that `fedlit compare studies/personalised.yaml` wrote.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd

from fedlit import read_metrics

COLOURS = {"Ditto": "#0072B2", "FedPer": "#009E73", "Local training": "#D55E00", "FedAvg": "#555555"}  # Okabe and Ito
SHIFT = {"Ditto": 1, "FedPer": 2, "Local training": -3}  # of a label, in points of a font


def curves(study: Path) -> dict[str, pd.DataFrame]:
    """Accuracy on own data in %, the mean over clients, by method: rounds in rows, seeds in columns."""
    found = {}
    for method, runs in pd.read_csv(study / "runs.csv").groupby("row"):
        seeds = [own_accuracy(study.parents[1] / folder) for folder in runs.folder]
        found[str(method)] = 100 * pd.concat(seeds, axis=1)
    return found


def own_accuracy(run: Path) -> pd.Series:
    """Of the model that a client uses itself: the personal one if there is one."""
    metrics = read_metrics(run)
    metrics = metrics[(metrics.metric == "acc") & (metrics.data == "own")]
    model = "personal" if (metrics.model == "personal").any() else "global"
    return metrics[metrics.model == model].groupby("round").value.mean()


def draw(found: dict[str, pd.DataFrame], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7.2, 3.8), layout="constrained")
    for method, colour in COLOURS.items():
        mean, deviation = found[method].mean(axis=1), found[method].std(axis=1)
        axes.plot(mean.index, mean, color=colour, linewidth=2)
        axes.fill_between(mean.index, mean - deviation, mean + deviation, color=colour, alpha=0.12, linewidth=0)
        label = f"{method}  {mean.iloc[-1]:.1f}"
        end = (float(mean.index[-1]), float(mean.iloc[-1]))
        shift = (6, SHIFT.get(method, 0))
        axes.annotate(
            label, end, shift, textcoords="offset points", verticalalignment="center", color=colour, fontsize=11
        )
    last = int(mean.index[-1])
    axes.set(xlabel="Round", ylabel="Accuracy on own data (%)", xlim=(1, last), ylim=(68, 91))
    axes.set_xticks([1, *range(5, last + 1, 5)])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.3)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    draw(curves(Path(sys.argv[1])), Path(sys.argv[2]))
