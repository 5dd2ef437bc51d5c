"""Lightning's loggers of a run: the metrics, options and pictures that they receive.

TensorBoard groups cards by the first part of a name: one group of means for every metric, one of bytes, one of single
clients and one of their range. Up to `MANY_CLIENTS` clients have a line each; of more, only mean and range are logged.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger

from fedlit.records.rows import POOLED, LedgerRow, Row, summary

MANY_CLIENTS = 20


class Loggers:
    """All loggers of a run, as the user gave them to the federation: `True` is TensorBoard in the run's folder.

    Other processes and development runs have no folder, and log nothing; a resumed run starts with `done` rounds.
    """

    def __init__(self, folder: Path | None, given: Logger | Sequence[Logger] | bool, done: int) -> None:
        self.all: list[Logger] = []
        if folder is None or given is False:
            return
        if given is True:
            self.all = [_tensorboard(folder, done)]
        else:
            self.all = [given] if isinstance(given, Logger) else [*given]

    @property
    def tensorboard_folders(self) -> list[str]:
        """What `tensorboard --logdir` shows."""
        return [logger.root_dir for logger in self.all if isinstance(logger, TensorBoardLogger)]

    def metrics(self, rows: list[Row], step: int, ledger: Iterable[LedgerRow] = (), prefix: str = "") -> None:
        """Log what was measured, and what clients sent and received, at a round or epoch."""
        if not self.all:
            return
        values = {f"{prefix}{name}": value for name, value in scalars(rows).items()}
        sent: Counter[str] = Counter()
        for row in ledger:
            sent[f"bytes/{row.direction}"] += row.bytes
        values |= sent
        for logger in self.all:
            if type(logger) is TensorBoardLogger:  # a subclass may log otherwise
                _add_scalars(logger.experiment, values, step)
            else:
                logger.log_metrics(values, step=step)
                logger.save()  # CSVLogger keeps its lines in memory till then

    def options(self, options: Mapping[str, Any]) -> None:
        """Log the options of the run as hyperparameters; TensorBoard shows them beside final metrics, at the end."""
        for logger in self.all:
            if not isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(dict(options))

    def results(self, options: Mapping[str, Any], best: Mapping[str, float]) -> None:
        """Log the options with the best metrics, for TensorBoard's tab of hyperparameters."""
        for logger in self.all:
            if isinstance(logger, TensorBoardLogger):
                logger.log_hyperparams(dict(options), metrics=dict(best))

    def picture(self, path: Path, step: int) -> None:
        """Show a picture of the run's folder in the loggers that take pictures: TensorBoard, W&B and MLflow."""
        for logger in self.all:
            if isinstance(logger, TensorBoardLogger):
                _add_png(logger.experiment, path, step)
            elif isinstance(logger, MLFlowLogger):
                logger.experiment.log_artifact(logger.run_id, str(path))
            elif callable(log_image := getattr(logger, "log_image", None)):
                log_image(key=path.stem, images=[str(path)], step=step)

    def close(self, status: str = "success") -> None:
        for logger in self.all:
            logger.finalize(status)


def _tensorboard(folder: Path, done: int) -> TensorBoardLogger:
    """TensorBoard in the folder of the run."""
    # A killed run may have shown rounds that were not saved; they are shown again.
    purge = done + 1 if (folder / "metrics.csv").exists() else None
    runs = folder.parent
    return TensorBoardLogger(runs.parent, runs.name, folder.name, default_hp_metric=False, purge_step=purge)


def scalars(rows: list[Row]) -> dict[str, float]:
    """What is logged of a round, by name.

    Example:
        >>> scalars([Row(1, "s", "all", "global", "pooled", "acc", 0.5)])
        {'acc/global_on_pooled': 0.5}
        >>> list(scalars([Row(1, "s", 7, "global", "own", "acc", 0.5)]))[:2]
        ['clients/acc/global_on_own/client_07', 'acc/global_on_own/mean']
    """
    found = {}
    counts = Counter(row.key for row in rows)
    for row in rows:
        if row.client == POOLED:
            found[row.key] = row.value
        elif counts[row.key] <= MANY_CLIENTS:
            found[f"clients/{row.key}/client_{row.client:02d}"] = row.value
    for key, parts in summary(row for row in rows if row.client != POOLED).items():
        found[f"{key}/mean"] = parts["mean"]
        for part in ("min", "max"):
            found[f"range/{key}/{part}"] = parts[part]
    return found


def _add_scalars(writer: Any, values: Mapping[str, float], step: int) -> None:
    """Write all scalars of a round as one event: one by one, they cost more than a round of small clients."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    entries = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
    writer.file_writer.add_summary(Summary(value=entries), step)


def _add_png(writer: Any, path: Path, step: int) -> None:
    """Write a PNG file as it is: `add_image` would take decoded pixels and encode them again."""
    from tensorboard.compat.proto.summary_pb2 import Summary

    png = path.read_bytes()
    width, height = (int.from_bytes(png[start : start + 4]) for start in (16, 20))  # of the header
    image = Summary.Image(encoded_image_string=png, width=width, height=height, colorspace=4)  # RGBA
    writer.file_writer.add_summary(Summary(value=[Summary.Value(tag=path.stem, image=image)]), step)
