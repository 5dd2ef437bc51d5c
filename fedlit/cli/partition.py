"""`fedlit partition`: the partition of a recipe as a table of clients and classes, without training."""

import re
import sys
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from fedlit.cli.recipes import with_recipes_found
from fedlit.cli.refusal import OneLineParser, refusals, refuse
from fedlit.cli.tables import aligned

if TYPE_CHECKING:
    import numpy as np

    from fedlit.data import FederatedData

EXAMPLES = """\
Every option of the data may be given as in `fedlit fit`; see fedlit fit --data.help FederatedData.

examples:
  fedlit partition --config fml_fashion.yaml
  fedlit partition --config fml_fashion.yaml --data.partition Shards --data.partition.per_client 2
  fedlit partition --data.num_clients 20 --picture partition.png
"""
FORMATS = (".png", ".pdf", ".svg")
MOST_CLIENTS = 30  # of more, the first and the last `SHOWN` are in the table
SHOWN = 10
MOST_CLASSES = 20  # of more, the `LARGEST` are in the table
LARGEST = 3


def main(args: list[str]) -> None:
    """Show the partition: a table of clients and classes, and a picture if asked for."""
    parser = OneLineParser("fedlit partition", str(main.__doc__), epilog=EXAMPLES)
    parser.add_argument("-c", "--config", metavar="RECIPE", action="append", default=[], help="As in `fedlit fit`.")
    parser.add_argument("--picture", metavar="FILE", help=f"Draw it, too, as {', '.join(FORMATS)}.")
    given, rest = parser.parse_known_args(args)
    for arg in rest:
        if re.match(r"--?[a-z]", arg) and not arg.startswith("--data"):
            refuse(f"`{arg.partition('=')[0]}` does not affect the partition; give options of `--data`.")
    _check_picture(given.picture)
    recipes = [word for recipe in given.config for word in ("--config", recipe)]
    _show(given, ["fit", *recipes, *rest])


def _check_picture(name: str | None) -> None:
    if name is None:
        return
    path = Path(name)
    if path.suffix not in FORMATS:
        refuse(f"`--picture` must end in {', '.join(FORMATS)}, got {name}.")
    if not path.parent.is_dir():
        refuse(f"`--picture` {name}: there is no folder {path.parent}.")


def _show(given: Namespace, args: list[str]) -> None:
    """Build the data of a recipe, alone, and print the table."""
    with refusals():
        args = with_recipes_found(args)  # before seconds of imports
    from fedlit.cli.app import DataCLI, notices_in_one_line, refused_in_one_line, warn_of_inherited
    from fedlit.records.pictures import draw_who_holds_what

    with notices_in_one_line(), refused_in_one_line():
        sys.argv[1:] = args
        cli = DataCLI()
        warn_of_inherited(sys.argv[1:], cli.options.as_dict())
        data = cli.datamodule
        with refused_in_one_line(options=cli.options):
            data.prepare_data()
            data.setup()
            data.warn_of_labels()
    print(format_table(data))
    if given.picture is not None:
        draw_who_holds_what(data, Path(given.picture), data.describe())
        print(f"\nLook at {given.picture}.")


def format_table(data: "FederatedData") -> str:
    """The table, and a line on what it does not show."""
    import numpy as np

    counts = data.class_counts()
    opted_in = [int(mask.sum()) for mask in data.assignment.opted_in]
    validation = [len(part) for part in data.assignment.val]
    classes = _classes(data)
    rows = [["client", *classes, "samples", "opted in", "validation"]]
    is_long = len(counts) > MOST_CLIENTS
    for k, (own, shared, held_out) in enumerate(zip(counts, opted_in, validation, strict=True)):
        if not is_long or k < SHOWN or k >= len(counts) - SHOWN:
            rows.append([_name(k, data), *_cells(own, classes), *map(str, (own.sum(), shared, held_out))])
        elif k == SHOWN:
            rows.append(["...", *[""] * (len(rows[0]) - 1)])
    totals = counts.sum(axis=0)
    cells = _cells(totals, classes)
    if len(totals) > MOST_CLASSES:
        cells[-1] = ""
    rows.append(["all", *cells, *map(str, (totals.sum(), sum(opted_in), sum(validation)))])
    sizes = counts.sum(axis=1)
    held = f"{len(counts)} clients hold {sizes.min()} to {sizes.max()} training samples (median {np.median(sizes):g})"
    return f"{aligned(rows)}\n\n{'; '.join([held, *_remarks(data)])}."


def _classes(data: "FederatedData") -> list[str]:
    """Names of the columns of classes; none where targets are no classes."""
    number = data.splits.num_classes or 0
    if number > MOST_CLASSES:
        return ["classes", "largest"]
    return [f"class {c}" if c == 0 else str(c) for c in range(number)]


def _cells(counts: "np.ndarray", columns: list[str]) -> list[str]:
    """Samples by class; of many classes how many there are, and the largest."""
    if len(columns) == len(counts):
        return [str(count) if count else "." for count in counts]
    if not columns:
        return []
    largest = (-counts).argsort(kind="stable")[:LARGEST]
    return [str((counts > 0).sum()), ", ".join(f"{c}: {counts[c]}" for c in largest if counts[c])]


def _name(k: int, data: "FederatedData") -> str:
    name = str(k)
    if data.client_names is not None and data.client_names[k] != name:
        name += f" {data.client_names[k]}"
    return f"{name} unseen" if k >= data.num_clients - data.unseen_clients else name


def _remarks(data: "FederatedData") -> list[str]:
    source = {"train": "of the training set", "test": "of the test set"}[data.assignment.val_split]
    remarks = [
        f"their validation samples are {source}",
        f"the pooled test set has {len(data.splits.test)}",
    ]
    if data.public_pool:
        remarks.append(f"the public pool {len(data.public_pool)}")
    if data.partition.resplit_every_round:
        remarks.append("samples are dealt anew every round, and this is before the first")
    if data.partition.over_time:
        remarks.append("a round has a slice of each client's training samples, and this is all of them")
    if data.pixels_differ:
        remarks.append("clients see the same image differently")
    return remarks
