"""Writes metrics, ledger and events of a run as text, and shows the same numbers in its loggers."""

import errno
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from fedlit.records.charts import add_scalars, bytes_sent, is_crowded, layout, scalars
from fedlit.records.rewinding import EPOCHS, rewind
from fedlit.records.rows import POOLED, EpochRow, LedgerRow, Row, lines, values_by_key


class Recorder:
    """Writes the records of a run into its folder; without a folder (a development run) it writes nothing.

    Args:
        folder: The run's folder, or None.
        loggers: Lightning loggers; a TensorBoardLogger also gets a layout, pictures and histograms.
        resumed_round: Rows after this round are dropped from files of an earlier run; 0 starts anew.
    """

    def __init__(self, folder: Path | None, loggers: list[Logger], resumed_round: int = 0) -> None:
        self.folder = folder
        self.loggers = loggers
        self._layout: dict[str, bool] = {}
        self._bytes: dict[str, float] = {}  # of the round that is about to be shown
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        rewind(folder, resumed_round)
        self._metrics = (folder / "metrics.csv").open("a")
        self._ledger = (folder / "ledger.csv").open("a")
        self._events = (folder / "events.jsonl").open("a")

    def metrics(self, round: int, rows: list[Row]) -> None:
        """Append a round's metrics and show them in every logger."""
        if self.folder is not None:
            self._check_is_there()
            self._metrics.writelines(lines(rows))
            self._metrics.flush()
        for logger in self.loggers:
            values = scalars(rows) | self._bytes
            if type(logger) is TensorBoardLogger:
                add_scalars(logger.experiment, values, round)
            else:
                logger.log_metrics(values, step=round)
            if isinstance(logger, TensorBoardLogger):
                self._show(logger.experiment, round, rows)

    def epochs(self, rows: list[EpochRow]) -> None:
        """Append what clients' models came to after the epochs of a visit, if anybody asked."""
        if not rows:
            return
        rows = sorted(rows, key=lambda row: row.epoch)
        if self.folder is not None:
            path = self.folder / EPOCHS
            header = [] if path.exists() else [",".join(EpochRow._fields) + "\n"]
            with path.open("a") as file:
                file.writelines([*header, *lines(rows)])
        for epoch, some in groupby(rows, key=lambda row: row.epoch):
            told = scalars([row.at_epoch() for row in some])
            values = {f"epochs of {rows[0].stage}/{tag}": value for tag, value in told.items()}
            for logger in self.loggers:
                logger.log_metrics(values, step=epoch)

    def ledger(self, rows: list[LedgerRow]) -> None:
        """Append what crossed a client's border in a round; loggers are shown it with the round's metrics."""
        if self.loggers:
            self._bytes = bytes_sent(rows)
        if self.folder is not None:
            self._ledger.writelines(lines(rows))
            self._ledger.flush()

    def event(self, what: str, **details: Any) -> None:
        """Append something that happened, with its time."""
        if self.folder is not None:
            time = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._events.write(json.dumps({"time": time, "event": what, **details}) + "\n")
            self._events.flush()

    def picture(self, tag: str, path: Path, round: int) -> None:
        """Show a picture of the run's folder, as of a round, in TensorBoard."""
        from PIL import Image

        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                pixels = np.array(Image.open(path).convert("RGB"))
                logger.experiment.add_image(tag, pixels, round, dataformats="HWC")

    def options(self, options: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Record what was chosen beside what came of it (TensorBoard's hparams)."""
        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(dict(options), metrics=dict(scores))
            else:
                logger.log_hyperparams(dict(options))

    def close(self) -> None:
        for logger in self.loggers:
            logger.finalize("success")
        if self.folder is not None:
            self._metrics.close()
            self._ledger.close()
            self._events.close()

    def abandon(self) -> None:
        """Close what can be closed; what cannot be written any more has been told of."""
        for logger in self.loggers:
            with suppress(Exception):  # a logger raises what it likes
                logger.finalize("failed")
        if self.folder is not None:
            for file in (self._metrics, self._ledger, self._events):
                with suppress(OSError):
                    file.close()

    def _check_is_there(self) -> None:
        """Writing to a file that was deleted succeeds, and is lost."""
        if os.fstat(self._metrics.fileno()).st_nlink == 0:
            raise FileNotFoundError(errno.ENOENT, "the folder of the run was deleted", str(self.folder))

    def _show(self, writer: Any, round: int, rows: list[Row]) -> None:
        """What TensorBoard has beyond scalars: histograms of many clients, and charts for new metrics."""
        lines = {}
        for key, values in values_by_key(row for row in rows if row.client != POOLED).items():
            if is_crowded(len(values)):
                writer.add_histogram(key, np.array(values), round)
            lines[key] = self._layout.get(key, False) or not is_crowded(len(values))
        if not lines.items() <= self._layout.items():
            self._layout |= lines
            writer.add_custom_scalars(layout(self._layout))
