"""Progress of a run: a bar on a terminal and in a notebook, lines elsewhere; tables of metrics."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

from tqdm import tqdm  # type: ignore[import-untyped]  # tqdm carries no types

from fedlit.records.rows import Row, summary

Means = Mapping[str, Mapping[str, float]]
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
NOTEBOOK_COLUMNS = 110
LEAST_BAR = 5  # columns of a bar with something beside it
TQDMS_BAR = 10  # columns of tqdm's bar where it does not know the terminal's
MODELS = ("personal", "global")  # shown first, where there is little space
PAUSE = 30.0  # seconds without a line, where there is no bar


def in_notebook() -> bool:
    """Whether this process is a kernel, whose output goes to the cells of a notebook."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")


class CellOutput:
    """An output of a notebook's cell that shows the last line written to it; a file for tqdm."""

    def __init__(self) -> None:
        from IPython.display import display  # type: ignore[import-not-found]  # of the kernel

        self.handle = display({"text/plain": ""}, raw=True, display_id=True)

    def write(self, text: str) -> None:
        if line := text.strip("\r\n "):
            self.handle.update({"text/plain": line}, raw=True)

    def flush(self) -> None:
        """Every line is shown at once."""


def make_bar(**options: Any) -> tqdm | None:
    """A bar on a terminal or in a notebook; None where neither shows it."""
    if in_notebook():
        return tqdm(**options, file=CellOutput(), ncols=NOTEBOOK_COLUMNS, ascii=False)
    if sys.stderr is not None and sys.stderr.isatty():  # None: it was closed
        return tqdm(**options, dynamic_ncols=True)
    return None


class Progress:
    """Shows the progress of a run of `total` rounds, of which a resumed one has `done`, with means of `metric`."""

    def __init__(self, total: int, done: int = 0, enabled: bool = True, metric: str = "acc") -> None:
        self.total = total
        self.metric = metric
        self.enabled = enabled
        self.bar = make_bar(total=total, initial=done, unit="round", bar_format=BAR) if enabled else None
        self._training = ""  # who is, in which round
        self._postfix: list[str] = []  # of the last round, the most wanted first
        self._printed = monotonic()

    def training(self, round: int, who: str) -> None:
        """A client of the round, or the server, is about to train."""
        self._training = f"round {round}/{self.total}, {who}"
        if self.bar is not None:
            self.bar.set_description(who, refresh=False)
            self._draw(self.bar)
        else:
            self._print_now_and_then(self._training)

    def step(self, done: int, total: int) -> None:
        """It is about to take a step."""
        if self.bar is None:
            self._print_now_and_then(f"{self._training}, step {done}/{total}")

    def _print_now_and_then(self, line: str) -> None:
        if monotonic() - self._printed >= PAUSE:
            self.print(line)

    def round(self, number: int, stage: str, rows: list[Row], seconds: float) -> None:
        """A round has ended."""
        if not self.enabled:
            return
        found = summary(rows)
        shown = {key.rpartition("/")[2]: parts for key, parts in found.items() if key.rpartition("/")[0] == self.metric}
        if not shown:  # not evaluated in this round: what the method itself logs
            shown = {key.rpartition("/")[0]: parts for key, parts in found.items()}
        words = {name: f"{name.replace('_', ' ')} {parts['mean']:.4f}" for name, parts in shown.items()}
        if self.bar is not None:
            self._postfix = [*(words[name] for name in sorted(words, key=_wanted)), f"stage {stage}"]
            self.bar.update()
            self._draw(self.bar)
        else:
            self.print(f"round {number}/{self.total} {stage} ({seconds:.1f} s) {', '.join(words.values())}")

    def _draw(self, bar: tqdm) -> None:
        bar.set_postfix_str(shortened(bar, self._postfix))

    def say(self, line: str) -> None:
        """Print a line for the user above the bar, to standard error."""
        file = sys.stdout if in_notebook() else sys.stderr
        if self.enabled and file is not None:
            with suppress(OSError):
                tqdm.write(line, file=file)

    def print(self, text: str) -> None:
        """Print to standard output; a closed pipe does not end the run."""
        if self.enabled:
            self._printed = monotonic()
            with suppress(OSError):
                print(text, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.set_description(refresh=False)
            self._draw(self.bar)
            self.bar.close()


def _wanted(name: str) -> tuple[int, bool]:
    """Where a metric stands among others: the models that clients use, on their own data, first."""
    model, _, data = name.partition("_on_")
    return MODELS.index(model) if model in MODELS else len(MODELS), data != "own"


def shortened(bar: tqdm, parts: Iterable[str]) -> str:
    """As many of the parts, from the first on, as stand beside a bar on one line of the terminal."""
    given = bar.format_dict
    space = inf
    if given["ncols"] is not None:
        bare = bar.format_meter(**{**given, "postfix": "", "ncols": None})
        space = given["ncols"] - len(bare) + TQDMS_BAR - LEAST_BAR
    text = ""
    for part in parts:
        space -= len(", ") + len(part)
        if space < 0:
            break
        text += f", {part}"
    return text.removeprefix(", ")


def duration(seconds: float) -> str:
    """A time in the unit in which one would say it.

    Example:
        >>> [duration(seconds) for seconds in (70, 840, 84_000, 840_000)]
        ['70 s', '14 min', '23 h', '10 days']
    """
    for unit, length, most in (("s", 1, 120), ("min", 60, 120), ("h", 3600, 72)):
        if seconds < most * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} days"


def score_rows(
    scores: Means, best: Means | None = None, columns: Sequence[str] = ("mean", "min", "max"), over: str = "round"
) -> list[list[str]]:
    """A table of metrics as cells, its header first: what is measured but the loss, then what a method logs.

    `scores` has the numbers of every metric by column; `best`, its best mean and the round, adds two columns.
    """
    rows = [["metric", "model", "on", *columns, *(("best", f"at {over}") if best else ())]]
    for key in sorted(scores, key=_is_logged):
        metric, _, what = key.rpartition("/")  # a method may log a name with a slash
        if metric == "loss" and not _is_logged(key):
            continue
        numbers = [f"{scores[key][column]:.4f}" for column in columns]
        if what == "global_on_pooled" and columns[0] == "mean":  # one number has no range
            numbers[1:] = ["", ""]
        if best:  # a metric that was never finite, or of which nobody knows what is better, has none
            numbers += [f"{best[key]['value']:.4f}", str(best[key]["round"])] if key in best else ["", ""]
        rows.append([metric, *what.split("_on_"), *numbers])
    return rows


def _is_logged(key: str) -> bool:
    return key.endswith(("_on_train", "_on_server"))


def table(rows: list[list[str]]) -> str:
    """Cells as text.

    Example:
        >>> print(table(score_rows({"acc/personal_on_own": {"mean": 0.5, "min": 0.25, "max": 0.75}})))
        metric  model     on   mean    min     max
        acc     personal  own  0.5000  0.2500  0.7500
        >>> scores, best = {"before": 0.25, "after": 0.5}, {"value": 0.75, "round": 3}
        >>> key = "acc/personal_on_unseen"
        >>> print(table(score_rows({key: scores}, {key: best}, columns=("before", "after"), over="epoch")))
        metric  model     on      before  after   best    at epoch
        acc     personal  unseen  0.2500  0.5000  0.7500  3
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)
