"""A natural partition: samples know whose they are, such as the writer of a digit or the patient of a scan."""

import copy
import csv
from pathlib import Path

import numpy as np

from fedlit.bounds import check_kind
from fedlit.dealing import checked_labels, grouped, require
from fedlit.partition.base import Partition


class ByColumn(Partition):
    """Every sample belongs to a client already: a column says whose it is, a list, or a file.

    Clients are numbered in the order of their sorted names.

    Args:
        column: The column of a table, or the key of items that are dicts; `data.client` by default.
        clients: In place of a column of the data: the client of every training sample, as a list, or as a file with one
            in each line. If the file is a .csv, `column` is its column.
        test_clients: The same of the test samples, where clients have their own (`data.validation: test`,
            `data.own_test`).
    """

    by_class = False
    by_owner = True

    def __init__(
        self,
        column: str | None = None,
        clients: list[int] | list[str] | str | None = None,
        test_clients: list[int] | list[str] | str | None = None,
    ) -> None:
        for name, given in (("clients", clients), ("test_clients", test_clients)):
            if given is not None:
                check_kind(name, given, (list, tuple, str, np.ndarray), "a list of clients or a file of them")
        self.column = column
        self.clients = _as_array(clients)
        self.test_clients = _as_array(test_clients)
        self._owners: np.ndarray | None = None

    def owner_list(self, test: bool) -> list | None:
        given = self.test_clients if test else self.clients
        if isinstance(given, str):
            return _read_owners(Path(given).expanduser(), "test_clients" if test else "clients", self.column)
        return None if given is None else given.tolist()

    def for_samples(self, owners: np.ndarray) -> "ByColumn":
        other = copy.copy(self)
        other._owners = owners
        return other

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        num_samples = len(checked_labels(labels, num_clients, num_classes))
        require(self._owners is not None, "`ByColumn` must be told whose each sample is: call its `for_samples` first.")
        owners = np.asarray(self._owners)
        require(len(owners) == num_samples, f"`owners` must be [{num_samples}], one per sample, got {len(owners)}.")
        require(int(owners.max()) < num_clients, f"`owners` must lie in [0, {num_clients}), got {owners.max()}.")
        return grouped(np.arange(num_samples), owners, num_clients)


def _as_array(given: list[int] | list[str] | str | None) -> np.ndarray | str | None:
    """A list as an array, of which a record tells the length alone."""
    return given if given is None or isinstance(given, str) else np.array(given)


def _read_owners(path: Path, option: str, column: str | None) -> list[str]:
    require(path.is_file(), f"`{option}` must be a list of clients or a file of them, there is no file {path}.")
    text = path.read_text(encoding="utf-8")
    if path.suffix.lower() != ".csv":
        return [line.strip() for line in text.splitlines() if line.strip()]
    rows = csv.DictReader(text.splitlines())
    names = ", ".join(rows.fieldnames or [])
    require(column in (rows.fieldnames or []), f"`column` must be one of {path}: {names or 'none'}; got {column}.")
    return [str(row[str(column)]).strip() for row in rows]
