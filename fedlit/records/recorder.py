"""What a run leaves behind: metrics, ledger and events as text, and the same numbers in TensorBoard.

Every metric says which model on whose data: ``global``, ``personal``, ``trained`` (the client's copy right after local
training) on ``own`` (the client's validation samples), ``pooled`` (the test set), ``unseen`` (clients that never train)
or ``train`` (what a method logs in its training step).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import Tensor

POOLED = "all"
MANY_CLIENTS = 20  # above this, charts show mean, range and a histogram instead of a line per client


class Row(NamedTuple):
    """One line of metrics.csv."""

    round: int
    stage: str
    client: int | str
    model: str
    data: str
    metric: str
    value: float

    def __str__(self) -> str:
        return f"{','.join(map(str, self[:-1]))},{self.value:.9g}\n"

    @property
    def key(self) -> str:
        """Such as ``acc/global_on_own``."""
        return f"{self.metric}/{self.model}_on_{self.data}"


class LedgerRow(NamedTuple):
    """One line of ledger.csv: what crossed the border of a client."""

    round: int
    client: int
    direction: str
    kind: str
    bytes: int


def summary(rows: Iterable[Row]) -> dict[str, dict[str, float]]:
    """Mean, minimum and maximum over clients of every metric: ``{"acc/global_on_own": {"mean": ...}}``.

    Example:
        >>> summary([Row(1, "s", 0, "global", "own", "acc", 0.5), Row(1, "s", 1, "global", "own", "acc", 1.0)])
        {'acc/global_on_own': {'mean': 0.75, 'min': 0.5, 'max': 1.0}}
    """
    values = defaultdict(list)
    for row in rows:
        values[row.key].append(row.value)
    return {key: {"mean": float(np.mean(v)), "min": min(v), "max": max(v)} for key, v in values.items()}


class Recorder:
    """Writes the records of a run into its folder; without a folder (a development run) it writes nothing.

    Args:
        folder: The run's folder, or None.
        loggers: Lightning loggers; a TensorBoardLogger also gets a layout, pictures and histograms.
        resumed_round: Rows after this round are dropped from files of an earlier run; 0 starts anew.
    """

    def __init__(self, folder: Path | None, loggers: list[Logger], resumed_round: int = 0) -> None:
        self.folder, self.loggers = folder, loggers
        self._layout: dict[str, bool] = {}
        if folder is None:
            return
        folder.mkdir(parents=True, exist_ok=True)
        for name, columns in (("metrics.csv", Row._fields), ("ledger.csv", LedgerRow._fields)):
            _rewind(folder / name, ",".join(columns), resumed_round)
        self._metrics, self._ledger, self._events = (
            (folder / name).open("a") for name in ("metrics.csv", "ledger.csv", "events.jsonl")
        )

    def metrics(self, round: int, rows: list[Row]) -> None:
        """Append a round's metrics and show them in every logger."""
        if self.folder is not None:
            self._metrics.writelines(map(str, rows))
            self._metrics.flush()
        for logger in self.loggers:
            logger.log_metrics(_scalars(rows), step=round)
            if isinstance(logger, TensorBoardLogger):
                self._show(logger.experiment, round, rows)

    def ledger(self, rows: list[LedgerRow]) -> None:
        """Append what crossed a client's border in a round."""
        if self.folder is not None:
            self._ledger.writelines(",".join(map(str, row)) + "\n" for row in rows)
            self._ledger.flush()

    def event(self, what: str, **details: Any) -> None:
        """Append something that happened, with its time."""
        if self.folder is not None:
            time = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
            self._events.write(json.dumps({"time": time, "event": what, **details}) + "\n")
            self._events.flush()

    def picture(self, tag: str, path: Path, round: int) -> None:
        """Show a picture of the run's folder, as of a round, in TensorBoard."""
        from PIL import Image

        for logger in self.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image(tag, np.array(Image.open(path).convert("RGB")), round, dataformats="HWC")

    def options(self, options: Mapping[str, Any], scores: Mapping[str, float]) -> None:
        """Record what was chosen beside what came of it (TensorBoard's hparams)."""
        for logger in self.loggers:
            extra = {"metrics": dict(scores)} if isinstance(logger, TensorBoardLogger) else {}
            logger.log_hyperparams(dict(options), **extra)

    def close(self) -> None:
        for logger in self.loggers:
            logger.finalize("success")
        if self.folder is not None:
            for file in (self._metrics, self._ledger, self._events):
                file.close()

    def _show(self, writer: Any, round: int, rows: list[Row]) -> None:
        values = defaultdict(list)
        for row in rows:
            if row.client != POOLED:
                values[row.key].append(row.value)
        for key, clients in values.items():
            if len(clients) > MANY_CLIENTS:
                writer.add_histogram(key, np.array(clients), round)
        lines = {key: self._layout.get(key, False) or len(v) <= MANY_CLIENTS for key, v in values.items()}
        if not lines.items() <= self._layout.items():
            self._layout |= lines
            writer.add_custom_scalars(layout(self._layout))


def write_predictions(folder: Path, client: int | None, probabilities: Tensor, target: Tensor) -> Path:
    """The likeliest class of every sample, its probability and the label, in order; where they are."""
    path = folder / ("predictions_global.csv" if client is None else f"predictions_client_{client}.csv")
    confidence, predicted = probabilities.max(dim=1)
    rows = enumerate(zip(predicted.tolist(), confidence.tolist(), target.tolist(), strict=True))
    lines = (f"{i},{p},{c:.6f},{y}\n" for i, (p, c, y) in rows)
    path.write_text("index,predicted,probability,label\n" + "".join(lines))
    return path


def layout(lines: Mapping[str, bool]) -> dict[str, dict[str, list]]:
    """TensorBoard charts per metric: all clients in one, where each has a line of its own, and their mean with range.

    Example:
        >>> list(layout({"acc/global_on_own": True})["acc"])
        ['global on own: every client', 'global on own: mean and range']
        >>> layout({"acc/global_on_own": False})["acc"]["global on own: mean and range"]
        ['Margin', ['acc/global_on_own/mean', 'acc/global_on_own/min', 'acc/global_on_own/max']]
    """
    charts: dict[str, dict[str, list]] = defaultdict(dict)
    for key, every_client in sorted(lines.items()):
        metric, _, what = key.rpartition("/")  # a method may log a name with a slash, such as train/loss
        title = what.replace("_", " ")
        if every_client:
            charts[metric][f"{title}: every client"] = ["Multiline", [f"{key}/client_.*"]]
        charts[metric][f"{title}: mean and range"] = ["Margin", [f"{key}/{part}" for part in ("mean", "min", "max")]]
    return dict(charts)


def _scalars(rows: list[Row]) -> dict[str, float]:
    scalars, counts = {}, defaultdict(int)
    for row in rows:
        counts[row.key] += 1
    for row in rows:
        if row.client == POOLED:
            scalars[row.key] = row.value
        elif counts[row.key] <= MANY_CLIENTS:
            scalars[f"{row.key}/client_{row.client:02d}"] = row.value
    for key, parts in summary(row for row in rows if row.client != POOLED).items():
        scalars |= {f"{key}/{part}": value for part, value in parts.items()}
    return scalars


def _rewind(path: Path, header: str, last_round: int) -> None:
    """Keep the header and the whole lines up to a round: a killed run may have written more, or half a line."""
    lines = path.read_text().splitlines(keepends=True)[1:] if path.exists() and last_round else []
    numbers = [line.partition(",")[0] for line in lines]
    kept = [
        line
        for line, n in zip(lines, numbers, strict=True)
        if line[-1] == "\n" and n.isdigit() and int(n) <= last_round
    ]
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text("".join([header + "\n", *kept]))
    temporary.replace(path)
