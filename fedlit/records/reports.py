"""What an evaluation says, and what it leaves in the folder of the run that was evaluated."""

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
    rows: Sequence[Row], name: str, round: int, folder: Path | None, failures: Mapping[int, Failure] | None = None
) -> None:
    """Print a table and whom it leaves out, and leave the rows in the folder of the run that was evaluated."""
    tell_which(round, folder)
    print(table(summary(rows)))
    for k, failure in (failures or {}).items():
        print(f"without client {k}: {failure.reason}")
    if folder is not None:
        header = ",".join(Row._fields) + "\n"
        (folder / name).write_text(header + "".join(map(str, rows)))


def write_predictions(folder: Path, client: int | None, probabilities: Tensor, target: Tensor) -> Path:
    """The likeliest class of every sample, its probability and the label, in order; where they are."""
    path = folder / "predictions_global.csv"
    if client is not None:
        path = folder / f"predictions_client_{client}.csv"
    confidence, predicted = probabilities.max(dim=1)
    columns = zip(predicted.tolist(), confidence.tolist(), target.tolist(), strict=True)
    with path.open("w") as file:
        file.write("index,predicted,probability,label\n")
        for index, (label, probability, truth) in enumerate(columns):
            file.write(f"{index},{label},{probability:.6f},{truth}\n")
    return path
