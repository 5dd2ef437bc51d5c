"""The log of a fit: its folder, from the first picture to the last table. Only the first process keeps it."""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger
from torch import Tensor

from fedlit.data import FederatedData
from fedlit.data.client import SERVER
from fedlit.records.checkpoint import sync
from fedlit.records.pictures import draw_confusion, draw_curves, draw_who_holds_what
from fedlit.records.progress import Progress, table
from fedlit.records.reading import EPOCHS
from fedlit.records.recorder import Recorder
from fedlit.records.round_record import RoundRecord
from fedlit.records.rows import Row

CONFUSION = "confusion.csv"
Means = Mapping[str, Mapping[str, float]]


class FitLog:
    """The records of a fit in a run's folder; as a context, it closes them if an error ends the fit.

    Args:
        folder: None on other processes and in a development run: then nothing is written.
        data: Of the clients.
        logger: As the user gave it to the federation.
        done: Rounds that a run has behind it; 0 starts anew.
        progress: Prints what a person is to see.
        draws: Whether to leave pictures, too.
        metric: What curves are drawn of.
        title: Of pictures, before the name of the run.
        saves: Whether there are to be checkpoints.

    Attributes:
        noted_round: Of the last round that is whole in the records.
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
        self.recorder = Recorder(folder, _loggers(folder, logger, done), done)
        self.saves = saves
        self.noted_round = done
        if folder is not None and done == 0 and not data.is_placeholder:
            data.assignment.write(folder / "partition.csv", data.labels("train"), data.labels("test"))

    def __enter__(self) -> "FitLog":
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        if kind is not None:
            self.progress.close()
            self.recorder.abandon()

    def round(self, number: int, stage: str, record: RoundRecord, rows: list[Row], seconds: float) -> None:
        """A round has ended."""
        self.recorder.ledger(record.ledger)
        self.recorder.metrics(number, rows)
        self.recorder.epochs(record.epochs)
        self._left_out(number, record)
        self._overflowed(number, record)
        clients = {"attempt": record.attempt, "clients": record.clients}
        self.recorder.event("round", round=number, stage=stage, **clients, seconds=round(seconds, 3))
        self.noted_round = number
        self.progress.round(number, stage, rows, seconds)
        self._draw_partition()  # training comes first

    def _draw_partition(self) -> None:
        """Who holds what, if there is no picture of it yet."""
        if self.folder is None or not self.draws or self.data.is_placeholder:
            return
        picture = self.folder / "partition.png"
        if not picture.exists():
            draw_who_holds_what(self.data, picture, self.title)
            self.recorder.picture("partition", picture, 0)

    def repeated(self, number: int, record: RoundRecord) -> None:
        """An attempt at a round had too few usable clients."""
        self._left_out(number, record)
        self._overflowed(number, record)
        usable = len(record.clients) - len(record.failures)
        self.recorder.event("too_few", round=number, attempt=record.attempt, clients=record.clients, usable=usable)

    def _left_out(self, number: int, record: RoundRecord) -> None:
        for k, failure in record.failures.items():
            self.progress.say(f"round {number}: client {k} was left out: {failure.reason}")
            why = {"reason": failure.reason, "details": failure.details}
            self.recorder.event("left_out", round=number, attempt=record.attempt, client=k, **why)

    def _overflowed(self, number: int, record: RoundRecord) -> None:
        """Who took part without a single step."""
        for k, steps in record.overflowed.items():
            who = "the server" if k == SERVER else f"client {k}"
            self.progress.say(
                f"round {number}: {who} was not trained: gradients overflowed and every step ({steps}) was skipped "
                "(`trainer.precision` 16-mixed)"
            )
            client = "server" if k == SERVER else k
            self.recorder.event("steps_skipped", round=number, attempt=record.attempt, client=client, steps=steps)

    def confusion(self, counts: Tensor | None) -> None:
        """Samples of each class by what the global model takes them for, ``[C, C]``, if that is known."""
        if self.folder is None or counts is None:
            return
        lines = ["label,predicted,samples\n"]
        for label, row in enumerate(counts.tolist()):
            lines += [f"{label},{predicted},{samples}\n" for predicted, samples in enumerate(row)]
        (self.folder / CONFUSION).write_text("".join(lines))

    def _draw(self, folder: Path, round: int) -> None:
        """The pictures of the end: curves over rounds, over the epochs at home that were followed, and the confusion
        of the global model, if there is one.
        """
        if round:
            draw_curves(folder / "metrics.csv", folder / "curves.png", metric=self.metric, title=self.title)
        if (folder / EPOCHS).exists():
            draw_curves(folder / EPOCHS, folder / "epochs.png", over="epoch", metric=self.metric, title=self.title)
        if (folder / CONFUSION).exists():
            draw_confusion(folder / CONFUSION, folder / "confusion.png", self.title)
        for name in ("curves", "epochs", "confusion"):
            if (folder / f"{name}.png").exists():
                self.recorder.picture(name, folder / f"{name}.png", round)

    def close(
        self,
        round: int,
        chosen: Mapping[str, Any],
        last: Means,
        best: Means,
        rated: Means,
        stopped_by: int | None,
    ) -> None:
        """The curves and a table; where to look, and how to go on if the run was stopped.

        Args:
            round: How far the run has come.
            chosen: The options, as plain values, for TensorBoard's hparams.
            last: The last mean of every metric.
            best: The best one, and its round; the highest where nobody knows.
            rated: Of those of which it is known what is better.
            stopped_by: The signal that ended the run early, if one did.
        """
        folder = self.folder
        if folder is not None:
            if self.draws:
                self._draw(folder, round)
            self.recorder.options(chosen, {f"best/{key}": entry["value"] for key, entry in best.items()})
            self.recorder.event("end", round=round, stopped_by=stopped_by)
            if self.saves:
                sync(folder / "checkpoints")
        self.progress.close()
        self.recorder.close()
        if last:
            self.progress.print("\n" + table(last, rated))
        if folder is not None:
            self.progress.print(f"\n{self._where_to_look(folder)}")
            if stopped_by is not None and not self.saves:
                self.progress.print(f"Stopped after round {round}; without checkpoints, it cannot go on.")
            elif stopped_by is not None:
                checkpoint_path = folder / "checkpoints" / "last.ckpt"
                self.progress.print(f"Stopped after round {round}; to go on, add --ckpt_path {checkpoint_path}")

    def _where_to_look(self, folder: Path) -> str:
        """The page of the run, which `fit` writes last, its curves, and what else shows them."""
        commands = []
        if not self.draws:
            seen = str(folder)
            commands = [f"fedlit report {folder}"]
        elif find_spec("pandas") is None:  # the extra `report`
            seen = str(folder / "curves.png")
            commands = [f"pip install 'fedlit[report]' && fedlit report {folder}"]
        else:
            seen = f"{folder / 'report.html'} and curves.png beside it"
        if any(isinstance(logger, TensorBoardLogger) for logger in self.recorder.loggers):
            commands.append(f"tensorboard --logdir {folder.parent}")
        return ", or run: ".join([f"Look at {seen}", *commands])


def _loggers(folder: Path | None, logger: Logger | Sequence[Logger] | bool, done: int) -> list[Logger]:
    if folder is None or logger is False:
        return []
    if isinstance(logger, Sequence):
        return [*logger]
    if isinstance(logger, Logger):
        return [logger]
    # A killed run may have shown rounds that were not saved; they are shown again.
    purge = done + 1 if (folder / "metrics.csv").exists() else None
    return [
        TensorBoardLogger(
            save_dir=folder.parent.parent,
            name=folder.parent.name,
            version=folder.name,
            default_hp_metric=False,
            purge_step=purge,
        )
    ]
