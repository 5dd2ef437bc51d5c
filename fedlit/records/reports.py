"""What an evaluation says, and what it leaves in the folder of the run that was evaluated."""

import csv
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedlit.records.progress import table
from fedlit.records.round_record import Failure
from fedlit.records.rows import Row, summary


def tell_which(round: int, folder: Path | None) -> None:
    """Say what is evaluated: `last` and `best` may mean another run than one thinks."""
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
    told: str | None = None,
) -> None:
    """Print a table and whom it leaves out, and leave the rows in the folder of the run that was evaluated.

    Args:
        rows: What was found.
        name: Of their file.
        round: That was evaluated.
        folder: Of its run; None leaves nothing.
        failures: Clients that the rows are without.
        told: The table, where it is not that of means over clients.
    """
    tell_which(round, folder)
    print(told or table(summary(rows)))
    for k, failure in (failures or {}).items():
        print(f"without client {k}: {failure.reason}")
    if folder is not None:
        header = ",".join(Row._fields) + "\n"
        (folder / name).write_text(header + "".join(map(str, rows)))


def write_predictions(folder: Path, whose: str, probabilities: Tensor, more: Mapping[str, Sequence[object]]) -> Path:
    """The likeliest class of every sample and its probability, in order; where they are.

    Args:
        folder: Of the run.
        whose: By which model, of what: the file is named after it.
        probabilities: Of classes, ``[N, C]``.
        more: Further columns, such as the label.
    """
    path = folder / f"predictions_{whose}.csv"
    confidence, predicted = probabilities.max(dim=1)
    columns = {"predicted": predicted.tolist(), "probability": [f"{p:.6f}" for p in confidence.tolist()], **more}
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["index", *columns])
        for index, row in enumerate(zip(*columns.values(), strict=True)):
            writer.writerow([index, *row])
    return path
