"""What a person sees of a run: a bar on a terminal, one line a round elsewhere, a table at the end."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tqdm.auto import tqdm

from fedlit.records.recorder import Row, summary


class Progress:
    """Shows rounds as they end.

    Args:
        total: Rounds of the whole run.
        done: Rounds that a resumed run starts with.
        enabled: Off on all processes but the first, or if the user says so.
    """

    def __init__(self, total: int, done: int = 0, enabled: bool = True) -> None:
        self.total, self.enabled = total, enabled
        self.bar = None
        if enabled and sys.stderr.isatty():
            self.bar = tqdm(total=total, initial=done, unit="round", dynamic_ncols=True)

    def client(self, position: int, clients: int) -> None:
        """A client of the round is about to be visited."""
        if self.bar is not None:
            self.bar.set_description(f"client {position}/{clients}")

    def round(self, number: int, stage: str, rows: list[Row], seconds: float) -> None:
        """A round has ended."""
        if not self.enabled:
            return
        found = summary(rows)
        told = {_spoken(key): parts for key, parts in found.items() if key.startswith("acc/")}
        told = told or {key.rpartition("/")[0]: parts for key, parts in found.items()}  # what the method itself logs
        words = ", ".join(f"{name} {parts['mean']:.4f}" for name, parts in told.items())
        if self.bar is not None:
            self.bar.set_postfix_str(f"{stage}: {words}", refresh=False)
            self.bar.update()
        else:
            print(f"round {number}/{self.total} {stage} ({seconds:.1f} s) {words}", flush=True)

    def say(self, line: str) -> None:
        """A line for the person, whatever else is on the screen."""
        if self.enabled:
            tqdm.write(line, file=sys.stderr)

    def print(self, text: str) -> None:
        """Text of the end, for people and pipes."""
        if self.enabled:
            print(text, flush=True)

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()


def tell_which(round: int, folder: Path | None) -> None:
    """Say what is evaluated: `last` and `best` may mean another run than one thinks."""
    what = f"round {round}" + (f" of {folder}" if folder else "") if round else "an untrained model"
    print(f"Evaluating {what}.", file=sys.stderr)


def report(rows: Sequence[Row], name: str, round: int, folder: Path | None) -> None:
    """Print a table, and leave the rows in the folder of the run that was evaluated."""
    tell_which(round, folder)
    print(table(summary(rows)))
    if folder is not None:
        (folder / name).write_text(",".join(Row._fields) + "\n" + "".join(map(str, rows)))


def table(last: Mapping[str, Mapping[str, float]], best: Mapping[str, Mapping[str, float]] | None = None) -> str:
    """Every metric but losses: mean and range over clients; with `best`, also the best mean and its round.

    Example:
        >>> print(table({"acc/personal_on_own": {"mean": 0.5, "min": 0.25, "max": 0.75}}))
        metric  model     on   mean    min     max
        acc     personal  own  0.5000  0.2500  0.7500
    """
    rows = [["metric", "model", "on", "mean", "min", "max", *(("best", "at round") if best else ())]]
    for key, parts in last.items():
        metric, _, what = key.rpartition("/")  # a method may log a name with a slash
        if "loss" in metric:
            continue
        spread = ["", ""] if what == "global_on_pooled" else [f"{parts['min']:.4f}", f"{parts['max']:.4f}"]
        rows.append([metric, *what.split("_on_"), f"{parts['mean']:.4f}", *spread])
        if best:
            found = best.get(key)  # none if it was never finite
            rows[-1] += ["", ""] if found is None else [f"{found['value']:.4f}", str(found["round"])]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def _spoken(key: str) -> str:
    return key.rpartition("/")[2].replace("_", " ")
