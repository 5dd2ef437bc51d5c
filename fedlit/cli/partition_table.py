"""One call of `fedlit partition`: builds the data of a recipe and prints the partition table."""

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from lightning.pytorch.cli import LightningArgumentParser

from fedlit.cli.app import FederatedCLI, notices_in_one_line, refused_in_one_line
from fedlit.cli.help import print_partitions
from fedlit.cli.inherited import warn_of_inherited
from fedlit.cli.recipes import with_recipes_found
from fedlit.cli.tables import aligned
from fedlit.data import FederatedData
from fedlit.federation import Federation
from fedlit.methods import FederatedModule
from fedlit.records.pictures import draw_who_holds_what

MOST_CLIENTS = 30  # more are abridged to the first and the last few
MOST_CLASSES = 20  # of more, the largest are shown
SHOWN = 10  # clients at each end of an abridged table
LARGEST = 3
LARGEST_COLUMNS = ["classes", "largest"]


class DataCLI(FederatedCLI):
    """Builds the data of a recipe alone; method and trainer are read, and left as they are."""

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(Federation, "trainer", instantiate=False, sub_configs=True, skip={"seed"})
        parser.add_subclass_arguments(FederatedModule, "model", required=False, instantiate=False)
        parser.add_lightning_class_args(FederatedData, "data", subclass_mode=True, required=False)
        parser.set_defaults({"data": {"class_path": "fedlit.data.FederatedData"}})

    def instantiate_classes(self) -> None:
        config = self.config.clone()
        chosen = config[config.subcommand]
        for name in [name for name in vars(chosen) if name != "data"]:
            chosen.pop(name)
        self.config_init = self.parser.instantiate_classes(config)
        self.datamodule = self.config_init[config.subcommand].data


def print_table(args: list[str], picture: Path | None) -> None:
    """Print the table, and draw it if asked for.

    Args:
        args: As of `fedlit fit`.
        picture: Where to draw.
    """
    print_partitions(args)
    sys.argv[1:] = ["fit", *args]
    with notices_in_one_line(), refused_in_one_line():
        sys.argv[1:] = with_recipes_found(sys.argv[1:])
        cli = DataCLI()
        warn_of_inherited(sys.argv[1:], cli.config[cli.subcommand].as_dict())
        data = cli.datamodule
        data.prepare_data()
        data.setup()
        data.warn_of_labels()
    print(format_table(data))
    if picture is not None:
        draw_who_holds_what(data, picture, data.describe())
        print(f"\nLook at {picture}.")


def format_table(data: FederatedData) -> str:
    """The table, and a line on what it does not show."""
    counts = data.class_counts()
    assignment = data.assignment
    opted_in = np.array([np.count_nonzero(mask) for mask in assignment.opted_in])
    validation = np.array([len(part) for part in assignment.val])
    columns, cells_of = _class_columns(data)
    header = ["client", *columns, "samples", "opted in", "validation"]
    rows = [header]
    for k in _shown(len(counts)):
        if k is None:
            rows.append(["..."] + [""] * (len(header) - 1))
            continue
        cells = cells_of(counts[k])
        rows.append([_name(k, data), *cells, str(counts[k].sum()), str(opted_in[k]), str(validation[k])])
    totals = counts.sum(axis=0)
    cells = cells_of(totals)
    if columns == LARGEST_COLUMNS:
        cells[1] = ""
    rows.append(["all", *cells, str(totals.sum()), str(opted_in.sum()), str(validation.sum())])
    return f"{aligned(rows)}\n\n{_summary(data, counts)}"


def _class_columns(data: FederatedData) -> tuple[list[str], Callable[[np.ndarray], list[str]]]:
    """Names of the columns of classes, and a function for their cells; none where targets are no classes."""
    num_classes = data.splits.num_classes
    if not num_classes:
        return [], lambda counts: []
    if num_classes > MOST_CLASSES:
        return LARGEST_COLUMNS, _largest
    return [f"class {c}" if c == 0 else str(c) for c in range(num_classes)], _by_class


def _shown(num_clients: int) -> list[int | None]:
    """Clients in the table; None stands for those that are left out."""
    if num_clients <= MOST_CLIENTS:
        return list(range(num_clients))
    return [*range(SHOWN), None, *range(num_clients - SHOWN, num_clients)]


def _name(k: int, data: FederatedData) -> str:
    name = str(k)
    if data.client_names is not None and data.client_names[k] != name:
        name += f" {data.client_names[k]}"
    return f"{name} unseen" if k >= data.num_clients - data.unseen_clients else name


def _by_class(counts: np.ndarray) -> list[str]:
    return [str(count) if count else "." for count in counts]


def _largest(counts: np.ndarray) -> list[str]:
    """How many classes there are, and the largest of them: many columns would not fit."""
    order = np.argsort(-counts, kind="stable")[:LARGEST]
    words = [f"{c}: {counts[c]}" for c in order if counts[c]]
    return [str(np.count_nonzero(counts)), ", ".join(words)]


def _summary(data: FederatedData, counts: np.ndarray) -> str:
    sizes = counts.sum(axis=1)
    source = {"train": "of the training set", "test": "of the test set"}[data.assignment.val_split]
    parts = [
        f"{len(counts)} clients hold {sizes.min()} to {sizes.max()} training samples (median {np.median(sizes):g})",
        f"their validation samples are {source}",
        f"the pooled test set has {len(data.splits.test)}",
    ]
    if data.public_pool:
        parts.append(f"the public pool {len(data.public_pool)}")
    if data.partition.resplit_every_round:
        parts.append("clients change hands every round, and this is before the first")
    if data.partition.over_time:
        parts.append("a round has a slice of each client's training samples, and this is all of them")
    if data.pixels_differ:
        parts.append("clients see the same image differently")
    return "; ".join(parts) + "."
