"""The log of a fit: records, loggers, pictures and what is printed. Only the first process keeps it."""

import errno
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger
from torch import Tensor

from fedlit.data import FederatedData
from fedlit.data.client import SERVER
from fedlit.records.checkpoint import sync
from fedlit.records.loggers import Loggers
from fedlit.records.pictures import draw_confusion, draw_curves, draw_who_holds_what
from fedlit.records.progress import Progress, in_notebook, score_rows, table
from fedlit.records.reading import EPOCHS, EVENTS, LEDGER, METRICS, rewind
from fedlit.records.round_record import RoundRecord
from fedlit.records.rows import EpochRow, Row, lines

CONFUSION = "confusion.csv"
Means = Mapping[str, Mapping[str, float]]


class FitLog:
    """The records of a fit in a run's folder; as a context, it closes the loggers if an error ends the fit.

    Args:
        folder: None on other processes and in a development run: then nothing is written.
        data: The clients' data.
        logger: As the user gave it to the federation.
        done: Rounds that a resumed run starts with, whose records stay; 0 starts anew.
        progress: Prints what the user is to see.
        draws: Whether to draw pictures, with curves of `metric` and `title` before the name of the run.
        saves: Whether there are to be checkpoints.
    """

    def __init__(
        self,
        folder: Path | None,
        data: FederatedData,
        logger: Logger | Sequence[Logger] | bool,
        done: int,
        progress: Progress,
        draws: bool = True,
        metric: str = "acc",
        title: str = "",
        saves: bool = True,
    ) -> None:
        self.folder = folder
        self.data = data
        self.metric = metric
        self.draws = draws
        self.title = title if folder is None else f"{title}: {folder.name}".lstrip(": ")
        self.progress = progress
        self.loggers = Loggers(folder, logger, done)
        self.saves = saves
        self.noted_round = done  # the last that is whole in the records
        self._options: Mapping[str, Any] = {}
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        rewind(folder, done)
        if done == 0 and not data.is_placeholder:
            data.assignment.write(folder / "partition.csv", data.labels("train"), data.labels("test"))

    def __enter__(self) -> "FitLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is not None:
            self.progress.close()
            with suppress(Exception):  # a logger raises what it likes; the error is reported elsewhere
                self.loggers.close("failed")

    def options(self, options: Mapping[str, Any]) -> None:
        """Log the options of the run, as plain values."""
        self._options = options
        self.loggers.options(options)

    def round(self, number: int, stage: str, record: RoundRecord, rows: list[Row], seconds: float) -> None:
        """Record a round that has ended."""
        self._append(LEDGER, lines(record.ledger))
        self._append(METRICS, lines(rows))
        self.loggers.metrics(rows, number, record.ledger)
        self._epochs(record.epochs)
        self._left_out(number, record)
        clients = {"attempt": record.attempt, "clients": record.clients}
        self.event("round", round=number, stage=stage, **clients, seconds=round(seconds, 3))
        self.noted_round = number
        self.progress.round(number, stage, rows, seconds)

    def repeated(self, number: int, record: RoundRecord) -> None:
        """Record an attempt at a round that had too few valid updates."""
        self._left_out(number, record)
        usable = len(record.clients) - len(record.failures)
        self.event("too_few", round=number, attempt=record.attempt, clients=record.clients, usable=usable)

    def event(self, what: str, **details: Any) -> None:
        """Record an event with its time."""
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        self._append(EVENTS, [json.dumps({"time": time, "event": what, **details}) + "\n"])

    def confusion(self, counts: Tensor | None) -> None:
        """Record how many samples of each class the global model predicts as which, ``[C, C]``, if that is known."""
        if self.folder is None or counts is None:
            return
        found = ["label,predicted,samples\n"]
        for label, row in enumerate(counts.tolist()):
            found += [f"{label},{predicted},{samples}\n" for predicted, samples in enumerate(row)]
        (self.folder / CONFUSION).write_text("".join(found))

    def close(self, round: int, last: Means, best: Means, rated: Means, stopped_by: int | None) -> None:
        """Draw the pictures; print a table, where to look, and how to resume if a signal stopped the run.

        `last` and `best` hold every metric, `rated` the best of those of which it is known what is better.
        """
        if self.folder is not None:
            if self.draws:
                self._draw(self.folder, round)
            self.loggers.results(self._options, {f"best/{key}": entry["value"] for key, entry in best.items()})
            self.event("end", round=round, stopped_by=stopped_by)
            if self.saves:
                sync(self.folder / "checkpoints")
        self.progress.close()
        self.loggers.close()
        if not in_notebook():  # where FitResult shows both
            if last:
                self.progress.print("\n" + table(score_rows(last, rated)))
            if self.folder is not None:
                self.progress.print(f"\n{self._where_to_look(self.folder)}")
        if self.folder is not None and stopped_by is not None:
            how = f"to go on, add --ckpt_path {self.folder / 'checkpoints' / 'last.ckpt'}"
            how = how if self.saves else "without checkpoints, it cannot go on."
            self.progress.print(f"Stopped after round {round}; {how}")

    def _append(self, name: str, text: list[str]) -> None:
        """Append lines to a record, which may not have been deleted since the fit began."""
        if self.folder is None or not text:
            return
        path = self.folder / name
        if not path.exists():
            raise FileNotFoundError(errno.ENOENT, "a record of the run was deleted", str(path))
        with path.open("a") as file:
            file.writelines(text)

    def _epochs(self, rows: list[EpochRow]) -> None:
        """Record metrics after local epochs, if any were asked for."""
        rows = sorted(rows, key=lambda row: row.epoch)
        if self.folder is not None and rows and not (self.folder / EPOCHS).exists():
            (self.folder / EPOCHS).write_text(",".join(EpochRow._fields) + "\n")
        self._append(EPOCHS, lines(rows))
        for epoch, some in groupby(rows, key=lambda row: row.epoch):
            self.loggers.metrics([row.at_epoch() for row in some], epoch, prefix=f"epochs of {rows[0].stage}/")

    def _left_out(self, number: int, record: RoundRecord) -> None:
        """Record clients that failed, and those that took part without a single step."""
        for k, failure in record.failures.items():
            self.progress.say(f"round {number}: client {k} was left out: {failure.reason}")
            why = {"reason": failure.reason, "details": failure.details}
            self.event("left_out", round=number, attempt=record.attempt, client=k, **why)
        for k, steps in record.overflowed.items():
            who, client = ("the server", "server") if k == SERVER else (f"client {k}", k)
            self.progress.say(
                f"round {number}: {who} was not trained: gradients overflowed and every step ({steps}) was skipped "
                "(`trainer.precision` 16-mixed)"
            )
            self.event("steps_skipped", round=number, attempt=record.attempt, client=client, steps=steps)

    def _draw(self, folder: Path, round: int) -> None:
        """Draw who holds what, curves over rounds and followed local epochs, and the confusion of the global model."""
        if not self.data.is_placeholder and not (folder / "partition.png").exists():
            draw_who_holds_what(self.data, folder / "partition.png", self.title)
        if round:
            draw_curves(folder / METRICS, folder / "curves.png", metric=self.metric, title=self.title)
        if (folder / EPOCHS).exists():
            draw_curves(folder / EPOCHS, folder / "epochs.png", over="epoch", metric=self.metric, title=self.title)
        if (folder / CONFUSION).exists():
            draw_confusion(folder / CONFUSION, folder / "confusion.png", self.title)
        for name in ("partition", "curves", "epochs", "confusion"):
            if (folder / f"{name}.png").exists():
                self.loggers.picture(folder / f"{name}.png", round)

    def _where_to_look(self, folder: Path) -> str:
        """The page of the run, which `fit` writes last, its curves, and what else shows them."""
        has_page = self.draws and find_spec("pandas") is not None  # of the extra `report`
        seen = f"{folder / 'report.html'} and curves.png beside it" if has_page else str(folder)
        commands = [] if has_page else [f"fedlit report {folder}"]
        commands += [f"tensorboard --logdir {logged}" for logged in self.loggers.tensorboard_folders]
        return ", or run: ".join([f"Look at {seen}", *commands])
