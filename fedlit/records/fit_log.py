"""The books of a fit: its folder, from the first picture to the last table. Only the first process keeps them."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from lightning.pytorch.loggers import Logger, TensorBoardLogger

from fedlit.engine.run import Round, Run
from fedlit.engine.schedule import Schedule
from fedlit.engine.snapshot import take
from fedlit.methods.stage import Stage
from fedlit.records import checkpoint
from fedlit.records.pictures import draw_curves, draw_partition
from fedlit.records.progress import Progress, table
from fedlit.records.recorder import Recorder
from fedlit.records.rows import Row
from fedlit.records.run_folder import lock_folder


class Books:
    """Opens a run's folder, or goes on with it.

    Args:
        folder: None on other processes and in a development run: then nothing is written.
        logger: As the user gave it to the federation.
        run: Whose books these are.
        schedule: Its programme.
        progress: Where a person is told.
    """

    def __init__(
        self,
        folder: Path | None,
        logger: Logger | list[Logger] | bool,
        run: Run,
        schedule: Schedule,
        progress: Progress,
    ) -> None:
        self.folder, self.run, self.schedule, self.progress = folder, run, schedule, progress
        self.lock = None if folder is None else lock_folder(folder)
        self.recorder = Recorder(folder, _loggers(folder, logger, run.round), run.round)
        self.saved_round = run.round
        if folder is None:
            return
        self.recorder.event("fit", round=run.round, processes=run.fabric.world_size, fast=run.module.fast)
        if run.round == 0:
            labels, test_labels = run.data.images.train_y.numpy(), run.data.images.test_y.numpy()
            run.data.assignment.write(folder / "partition.csv", labels, test_labels)
            self.save(improved=False)  # killed in its first round, a run can still be resumed

    def round(self, number: int, stage: Stage, trained: Round, rows: list[Row], seconds: float) -> None:
        """A round has ended."""
        self.recorder.ledger(trained.ledger)
        self.recorder.metrics(number, rows)
        for k, failure in trained.failures.items():
            self.progress.say(f"round {number}: client {k} was left out: {failure.reason}")
            self.recorder.event("left_out", round=number, client=k, reason=failure.reason, details=failure.details)
        clients = trained.clients
        self.recorder.event("round", round=number, stage=stage.name, clients=clients, seconds=round(seconds, 3))
        self.progress.round(number, stage.name, rows, seconds)
        if self.folder is not None and not (picture := self.folder / "partition.png").exists():  # training comes first
            images, assignment = self.run.data.images, self.run.data.assignment
            draw_partition(assignment.class_counts(images.train_y.numpy(), images.num_classes), picture)
            self.recorder.picture("partition", picture, 0)

    def save(self, improved: bool) -> None:
        """A checkpoint of the run as it is; the one before is kept, and the best."""
        if self.folder is None:
            return
        folder = self.folder / "checkpoints"
        last = folder / "last.ckpt"
        if last.exists():
            checkpoint.keep(last, folder / "previous.ckpt")
        # The best first: killed in between, the run goes on from the last and comes to the same best again.
        target = folder / "best.ckpt" if improved else last
        checkpoint.save(take(self.run, self.schedule), target)
        if improved:
            checkpoint.keep(target, last)
        self.saved_round = self.run.round

    def abandon(self) -> None:
        """Close the files of a run and give its folder free; all that is left to do where it died of an error."""
        self.progress.close()
        self.recorder.close()
        if self.lock is not None:
            self.lock.close()

    def close(self, options: Mapping[str, Any], stopped_by: int | None) -> None:
        """The last checkpoint, the curves and a table; where to look, and how to go on if the run was stopped."""
        run, folder = self.run, self.folder
        if folder is not None:
            if self.saved_round != run.round:
                self.save(improved=False)
            if run.round:
                draw_curves(folder / "metrics.csv", folder / "curves.png")
                self.recorder.picture("curves", folder / "curves.png", run.round)
            best = {f"best/{key}": entry["value"] for key, entry in run.best.items()}
            self.recorder.options(_chosen(options, run), best)
            self.recorder.event("end", round=run.round, stopped_by=stopped_by)
        self.abandon()
        if run.last:
            self.progress.print("\n" + table(run.last, run.best))
        if (monitor := options["monitor"]) and run.last and monitor not in run.best:
            self.progress.say(f"`trainer.monitor` {monitor} was never measured, so there is no best.ckpt.")
        if folder is not None:
            self.progress.print(f"\nLook at {folder}/curves.png, or run: tensorboard --logdir {folder.parent}")
            if stopped_by is not None:
                last = folder / "checkpoints" / "last.ckpt"
                self.progress.print(f"Stopped after round {run.round}; to go on, add --ckpt_path {last}")


def _loggers(folder: Path | None, logger: Logger | list[Logger] | bool, done: int) -> list[Logger]:
    if folder is None or logger is False:
        return []
    if logger is not True:
        return logger if isinstance(logger, list) else [logger]
    where = {"save_dir": folder.parent.parent, "name": folder.parent.name, "version": folder.name}
    # A killed run may have shown rounds that were not saved; they are shown again.
    purge = done + 1 if (folder / "metrics.csv").exists() else None
    return [TensorBoardLogger(**where, default_hp_metric=False, purge_step=purge)]


def _chosen(options: Mapping[str, Any], run: Run) -> dict[str, Any]:
    """The options that are plain values, for TensorBoard's hparams."""
    parts = {
        "trainer": options,
        "data": _arguments(run.data),
        "data.partition": _arguments(run.data.partition),
        "model": _arguments(run.module),
        "model.optimizer": getattr(run.module.optimizer, "keywords", {}),  # a partial, from the command line
    }
    named = {f"{part}.{k}": v for part, values in parts.items() for k, v in values.items()}
    plain = {name: v for name, v in named.items() if isinstance(v, bool | int | float | str)}
    return {"method": type(run.module).__name__, "partition": type(run.data.partition).__name__, **plain}


def _arguments(made: object) -> dict[str, Any]:
    """The attributes that bear the name of a constructor's argument: Lightning's own switches are left out."""
    names = {name for kind in type(made).__mro__ for name in signature(kind.__init__).parameters}
    return {name: value for name, value in vars(made).items() if name in names}
