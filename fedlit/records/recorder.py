"""Writes metrics, ledger and events of a run as text, and logs the same numbers to its loggers.

TensorBoard groups cards by the first part of a name: one group of means for every metric, one of bytes, one of single
clients and one of their range. Up to `MANY_CLIENTS` clients have a line each; of more, charts show mean, range and a
histogram.
"""

import errno
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch.loggers import Logger, TensorBoardLogger

from fedlit.records.reading import EPOCHS, rewind
from fedlit.records.rows import POOLED, EpochRow, LedgerRow, Row, lines, summary, values_by_key

MANY_CLIENTS = 20
# Groups of TensorBoard, beside one for every metric.
CLIENTS = "clients"
RANGE = "range"


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
        """Append metrics after local epochs, if any were asked for."""
        if not rows:
            return
        rows = sorted(rows, key=lambda row: row.epoch)
        if self.folder is not None:
            path = self.folder / EPOCHS
            header = [] if path.exists() else [",".join(EpochRow._fields) + "\n"]
            with path.open("a") as file:
                file.writelines([*header, *lines(rows)])
        for epoch, some in groupby(rows, key=lambda row: row.epoch):
            logged = scalars([row.at_epoch() for row in some])
            values = {f"epochs of {rows[0].stage}/{tag}": value for tag, value in logged.items()}
            for logger in self.loggers:
                logger.log_metrics(values, step=epoch)

    def ledger(self, rows: list[LedgerRow]) -> None:
        """Append what clients sent and received in a round; loggers get it with the round's metrics."""
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
        """Log hyper-parameters with the final scores (TensorBoard's hparams)."""
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
        """Close what can be closed, after an error that has been reported."""
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


def is_crowded(clients: int) -> bool:
    """Whether a chart has more lines than can be distinguished."""
    return clients > MANY_CLIENTS


def scalars(rows: list[Row]) -> dict[str, float]:
    """What is logged of a round, by name.

    Example:
        >>> scalars([Row(1, "s", "all", "global", "pooled", "acc", 0.5)])
        {'acc/global_on_pooled': 0.5}
        >>> list(scalars([Row(1, "s", 7, "global", "own", "acc", 0.5)]))[:2]
        ['clients/acc/global_on_own/client_07', 'acc/global_on_own/mean']
    """
    found = {}
    keys = [row.key for row in rows]
    counts = Counter(keys)
    for row, key in zip(rows, keys, strict=True):
        if row.client == POOLED:
            found[key] = row.value
        elif not is_crowded(counts[key]):
            found[f"{CLIENTS}/{key}/client_{row.client:02d}"] = row.value
    for key, parts in summary(row for row in rows if row.client != POOLED).items():
        found[f"{key}/mean"] = parts["mean"]
        for part in ("min", "max"):
            found[f"{RANGE}/{key}/{part}"] = parts[part]
    return found


def bytes_sent(rows: Iterable[LedgerRow]) -> dict[str, float]:
    """Bytes that all clients sent and received in a round.

    Example:
        >>> bytes_sent([LedgerRow(1, 0, "up", "state", 40), LedgerRow(1, 1, "up", "state", 40)])
        {'bytes/up': 80}
    """
    found: dict[str, float] = {}
    for row in rows:
        name = f"bytes/{row.direction}"
        found[name] = found.get(name, 0) + row.bytes
    return found


def add_scalars(writer: Any, values: Mapping[str, float], round: int) -> None:
    """Write all scalars of a round as one event: one by one, they cost more than a round of small clients."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    entries = [Summary.Value(tag=tag, simple_value=value) for tag, value in values.items()]
    writer.file_writer.add_summary(Summary(value=entries), round)


def layout(lines: Mapping[str, bool]) -> dict[str, dict[str, list[Any]]]:
    """TensorBoard charts per metric: all clients in one, where each has a line of its own, and their mean with range.

    Example:
        >>> list(layout({"acc/global_on_own": True})["acc"])
        ['global on own: every client', 'global on own: mean and range']
        >>> layout({"acc/global_on_own": False})["acc"]["global on own: mean and range"]
        ['Margin', ['acc/global_on_own/mean', 'range/acc/global_on_own/min', 'range/acc/global_on_own/max']]
    """
    charts: dict[str, dict[str, list[Any]]] = defaultdict(dict)
    for key, every_client in sorted(lines.items()):
        metric, _, what = key.rpartition("/")  # a method may log a name with a slash, such as train/loss
        title = what.replace("_", " ")
        if every_client:
            charts[metric][f"{title}: every client"] = ["Multiline", [f"{CLIENTS}/{key}/client_.*"]]
        mean_and_range = [f"{key}/mean", f"{RANGE}/{key}/min", f"{RANGE}/{key}/max"]
        charts[metric][f"{title}: mean and range"] = ["Margin", mean_and_range]
    return dict(charts)
