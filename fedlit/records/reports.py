"""What an evaluation prints, and what it writes into the folder of the evaluated run."""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedlit.records.files import write_whole
from fedlit.records.progress import table
from fedlit.records.round_record import Failure
from fedlit.records.rows import Row, lines, summary


def print_evaluated(round: int, folder: Path | None) -> None:
    """Print which round of which run is evaluated: `last` and `best` may mean another run than the user thinks."""
    what = "an untrained model"
    if round:
        what = f"round {round}"
        if folder is not None:
            what += f" of {folder}"
    print(f"Evaluating {what}.", file=sys.stderr)


def report(
    rows: Sequence[Row],
    name: str,
    round: int,
    folder: Path | None,
    failures: Mapping[int, Failure] | None = None,
    text: str | None = None,
) -> None:
    """Print a table and the clients that it lacks, and write the rows into the folder of the evaluated run.

    Args:
        rows: What was found.
        name: Of their file.
        round: That was evaluated.
        folder: Of its run; None leaves nothing.
        failures: Clients that the rows are without.
        text: The table to print; by default, means over clients.
    """
    print_evaluated(round, folder)
    print(text or table(summary(rows)))
    for k, failure in (failures or {}).items():
        print(f"without client {k}: {failure.reason}")
    if folder is not None:
        header = ",".join(Row._fields) + "\n"
        write_whole(folder / name, header + "".join(lines(rows)))


def write_predictions(folder: Path, whose: str, probabilities: Tensor, more: Mapping[str, Sequence[object]]) -> Path:
    """Write the likeliest class of every sample and its probability, in order; returns the path.

    Args:
        folder: Of the run.
        whose: By which model, of what: the file is named after it.
        probabilities: Of classes, ``[N, C]``.
        more: Further columns, such as the label.
    """
    confidence, predicted = probabilities.max(dim=1)
    columns = {"predicted": predicted.tolist(), "probability": [f"{p:.6f}" for p in confidence.tolist()], **more}
    return _write_table(folder / f"predictions_{whose}.csv", columns)


def write_outputs(
    folder: Path, whose: str, outputs: Tensor | list[Tensor], target: Any, more: Mapping[str, Sequence[object]]
) -> Path:
    """Write a model's output for every sample, in order; returns the path.

    Numbers of a sample are columns of a CSV, beside those of its target; what has more dimensions, such as a map of
    pixels, is a torch file with `predictions` and `targets`.

    Args:
        folder: Of the run.
        whose: By which model, of what: the file is named after it.
        outputs: ``[N]`` or ``[N, D]``, or of any shape; a list of batches that differ in theirs.
        target: Likewise, if there is one.
        more: Further columns, such as names of files.
    """
    columns = _columns("predicted", outputs)
    if columns is None:
        path = folder / f"predictions_{whose}.pt"
        torch.save({"predictions": outputs, "targets": target, **more}, path)
        return path
    beside = _columns("target", target) or {}
    return _write_table(folder / f"predictions_{whose}.csv", {**columns, **beside, **more})


def _columns(name: str, values: Any) -> dict[str, list[Any]] | None:
    """A column for each number of a sample; None if a table is not the place for them."""
    if not isinstance(values, Tensor) or values.ndim > 2:
        return None
    if values.ndim == 1:
        values = values[:, None]
    names = [name] if values.shape[1] == 1 else [f"{name}_{i}" for i in range(values.shape[1])]
    shown = values.tolist()
    if values.is_floating_point():
        shown = [[f"{value:.9g}" for value in row] for row in shown]
    return {name: [row[i] for row in shown] for i, name in enumerate(names)}


def _write_table(path: Path, columns: Mapping[str, Sequence[object]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["index", *columns])
        for index, row in enumerate(zip(*columns.values(), strict=True)):
            writer.writerow([index, *row])
    return path
