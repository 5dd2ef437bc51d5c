"""Progress of a run: a bar on a terminal, lines elsewhere, a table at the end."""

import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from math import inf
from time import monotonic

from tqdm.auto import tqdm  # type: ignore[import-untyped]  # tqdm carries no types

from fedlit.records.rows import Row, summary

Means = Mapping[str, float]
BAR = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
LEAST_BAR = 5  # columns of a bar with something beside it
TQDMS_BAR = 10  # columns of tqdm's bar where it does not know the terminal's
MODELS = ("personal", "global")  # shown first, where there is little space
PAUSE = 30.0  # seconds without a line, where there is no bar
WORTH_A_LINE = 60.0  # seconds of a round that are announced


class Progress:
    """Shows rounds as they end.

    Args:
        total: Rounds of the whole run.
        done: Rounds that a resumed run starts with.
        enabled: Off on all processes but the first, or if the user says so.
        metric: The metric printed after each round.
        num_processes: That share the clients of a round.
    """

    def __init__(
        self, total: int, done: int = 0, enabled: bool = True, metric: str = "acc", num_processes: int = 1
    ) -> None:
        self.total = total
        self.metric = metric
        self.enabled = enabled
        self.num_processes = num_processes
        self.bar: tqdm | None = None
        self._training = ""  # who is, in which round
        self._postfix: list[str] = []  # of the last round, the most wanted first
        self._printed = monotonic()
        if enabled and sys.stderr is not None and sys.stderr.isatty():  # None: it was closed
            self.bar = tqdm(total=total, initial=done, unit="round", dynamic_ncols=True, bar_format=BAR)
        self._is_silent = not enabled or self.bar is not None  # between rounds
        self._is_estimated = not enabled  # whether the time of a round was printed
        self._round = 0  # of the clients that are counted
        self._start = 0.0  # of that round
        self._clients = 0  # that this process has trained in it

    def client(self, round: int, position: int, num_clients: int) -> None:
        """This process is about to train a client of the round."""
        self.training(round, f"client {position}/{num_clients}")
        if self._is_estimated:
            return
        if round != self._round:
            self._round = round
            self._start = monotonic()
            self._clients = 0
            return
        self._clients += 1
        seconds = monotonic() - self._start
        if seconds >= PAUSE:
            self._is_estimated = True
            self._estimate(seconds / self._clients * num_clients / self.num_processes, self.total - round + 1)

    def training(self, round: int, who: str) -> None:
        """A client of the round, or the server, is about to train."""
        self._training = f"round {round}/{self.total}, {who}"
        if self.bar is not None:
            self.bar.set_description(who, refresh=False)
            self._draw(self.bar)
        elif not self._is_silent and monotonic() - self._printed >= PAUSE:
            self.print(self._training)

    def step(self, done: int, total: int) -> None:
        """It is about to take a step: a line every half minute, where there is no bar."""
        if not self._is_silent and monotonic() - self._printed >= PAUSE:
            self.print(f"{self._training}, step {done}/{total}")

    def _estimate(self, seconds: float, rounds: int) -> None:
        """How long a round will take, and those that are left, if it is worth a line."""
        if seconds > WORTH_A_LINE:
            all_rounds = "1 round" if rounds == 1 else f"{rounds} rounds"
            line = f"about {duration(seconds)} a round, {duration(seconds * rounds)} for {all_rounds}"
            (self.print if self.bar is None else self.say)(line)

    def round(self, number: int, stage: str, rows: list[Row], seconds: float) -> None:
        """A round has ended."""
        if not self.enabled:
            return
        found = summary(rows)
        shown = {_spoken(key): parts for key, parts in found.items() if key.rpartition("/")[0] == self.metric}
        if not shown:  # not evaluated in this round: what the method itself logs
            shown = {key.rpartition("/")[0]: parts for key, parts in found.items()}
        words = {name: f"{name} {parts['mean']:.4f}" for name, parts in shown.items()}
        if self.bar is not None:
            self._postfix = [*(words[name] for name in sorted(words, key=_wanted)), f"stage {stage}"]
            self.bar.update()
            self._draw(self.bar)
        else:
            self.print(f"round {number}/{self.total} {stage} ({seconds:.1f} s) {', '.join(words.values())}")

    def _draw(self, bar: tqdm) -> None:
        bar.set_postfix_str(shortened(bar, self._postfix))

    def say(self, line: str) -> None:
        """A line for the person, whatever else is on the screen."""
        if self.enabled and sys.stderr is not None:
            with suppress(OSError):
                tqdm.write(line, file=sys.stderr)

    def print(self, text: str) -> None:
        """Print to standard output; a closed pipe does not end the run."""
        if self.enabled:
            self._printed = monotonic()
            with suppress(OSError):
                print(text, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


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


def table(last: Mapping[str, Mapping[str, float]], best: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """What is measured but the loss, then all that is logged: mean and range over clients, and the best mean, if any.

    Example:
        >>> print(table({"acc/personal_on_own": {"mean": 0.5, "min": 0.25, "max": 0.75}}))
        metric  model     on   mean    min     max
        acc     personal  own  0.5000  0.2500  0.7500
    """
    header = ["metric", "model", "on", "mean", "min", "max"]
    if best:
        header += ["best", "at round"]
    rows = [header]
    for key in _shown(last):
        parts = last[key]
        metric, what = _metric_and_what(key)
        row = [metric, *what.split("_on_"), f"{parts['mean']:.4f}"]
        if what == "global_on_pooled":  # one number has no range
            row += ["", ""]
        else:
            row += [f"{parts['min']:.4f}", f"{parts['max']:.4f}"]
        if best and key in best:
            row += [f"{best[key]['value']:.4f}", str(best[key]["round"])]
        elif best:  # it was never finite, or has none
            row += ["", ""]
        rows.append(row)
    return _aligned(rows)


def epochs_table(before: Means, after: Means, best: Mapping[str, Mapping[str, float]]) -> str:
    """What is measured but the loss, then all that is logged: before the first epoch, after the last, and in the best.

    Example:
        >>> best = {"acc/personal_on_unseen": {"value": 0.75, "round": 3}}
        >>> print(epochs_table({"acc/personal_on_unseen": 0.25}, {"acc/personal_on_unseen": 0.5}, best))
        metric  model     on      before  after   best    at epoch
        acc     personal  unseen  0.2500  0.5000  0.7500  3
    """
    rows = [["metric", "model", "on", "before", "after", "best", "at epoch"]]
    for key in _shown(after):
        metric, what = _metric_and_what(key)
        row = [metric, *what.split("_on_"), f"{before[key]:.4f}", f"{after[key]:.4f}"]
        if key in best:  # else it was never finite, or has none
            row += [f"{best[key]['value']:.4f}", str(best[key]["round"])]
        rows.append([*row, *[""] * (len(rows[0]) - len(row))])
    return _aligned(rows)


def _shown(keys: Iterable[str]) -> list[str]:
    """What is measured, then what a method logs, such as losses; without the loss that every evaluation has."""
    worth_a_line = [key for key in keys if _is_logged(key) or _metric_and_what(key)[0] != "loss"]
    return sorted(worth_a_line, key=_is_logged)  # the order is kept otherwise


def _is_logged(key: str) -> bool:
    return key.endswith(("_on_train", "_on_server"))


def _metric_and_what(key: str) -> tuple[str, str]:
    """A method may log a name with a slash."""
    metric, _, what = key.rpartition("/")
    return metric, what


def _aligned(rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _wanted(name: str) -> tuple[int, bool]:
    """Where a score stands among others: the models of a client's own use on its own data first."""
    model, _, data = name.partition(" on ")
    return MODELS.index(model) if model in MODELS else len(MODELS), data != "own"


def _spoken(key: str) -> str:
    return key.rpartition("/")[2].replace("_", " ")
