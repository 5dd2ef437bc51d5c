r"""Partitions that look at no class: by size, at random, or by the client that each sample belongs to already.

`Quantity` deals shares :math:`q_k` of all samples, with :math:`q \sim \mathrm{Dir}(\alpha)`, or
:math:`q_k \propto r_k^{-a}` where the ranks :math:`r` are a random order of 1 to K.

Invariants: every sample is dealt once; alpha towards infinity, or power 0, are parts of equal size.
"""

import copy
import csv
from pathlib import Path

import numpy as np

from fedlit.bounds import check_count, check_kind, check_number, check_positive
from fedlit.partition.base import Partition, checked_labels, enough, grouped, log_dirichlet, require, row_shares, top_up
from fedlit.rng import stream

SMALLEST_ALPHA = 1e-300  # below it logarithms of shares overflow
LARGEST_POWER = 100.0


class IID(Partition):
    """Every client holds a random part of all data.

    Args:
        samples_per_client: How many each; by default all data, in parts that differ by at most one.
    """

    by_class = False

    def __init__(self, samples_per_client: int | None = None) -> None:
        if samples_per_client is not None:
            self.samples_per_client = check_count("samples_per_client", samples_per_client)

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        num_samples = len(checked_labels(labels, num_clients, num_classes))
        used = num_samples
        if self.samples_per_client is None:
            enough(num_samples, num_clients, "num_clients")
        else:
            enough(num_samples, num_clients, "samples_per_client", self.samples_per_client)
            used = num_clients * self.samples_per_client
        order = stream(seed, "samples").permutation(num_samples)
        return np.array_split(order[:used], num_clients)

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray:
        return row_shares(np.tile(class_sizes, (num_clients, 1)))


class Quantity(Partition):
    """Clients differ in how many samples they hold, and in nothing else.

    Args:
        alpha: Shares are drawn from Dir(alpha): small is uneven, large is even. Either this or `power`.
        power: Shares follow a power law with this exponent: 0 is even, 1 is Zipf's.
        min_samples: What each client holds at least, taken from who has most.
    """

    by_class = False

    def __init__(self, alpha: float | None = None, power: float | None = None, min_samples: int = 1) -> None:
        require((alpha is None) != (power is None), "`data.partition`: Quantity takes alpha or power, one of them.")
        if alpha is not None:
            check_positive("alpha", alpha, SMALLEST_ALPHA)
        if power is not None:
            check_number("power", power, least=0, most=LARGEST_POWER)
        self.alpha = alpha
        self.power = power
        self.min_samples = check_count("min_samples", min_samples, least=0)

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        num_samples = len(checked_labels(labels, num_clients, num_classes))
        enough(num_samples, num_clients, "min_samples", self.min_samples)
        log_q = self.log_shares(num_clients, seed)
        ends = np.rint(np.cumsum(np.exp(log_q)) * num_samples).astype(np.int64)
        ends = np.minimum(ends, num_samples)
        ends[-1] = num_samples
        counts = np.diff(ends, prepend=0)[None]
        top_up(counts, log_q[None], self.min_samples)
        order = stream(seed, "samples").permutation(num_samples)
        return np.split(order, np.cumsum(counts[0])[:-1])

    def log_shares(self, num_clients: int, seed: int) -> np.ndarray:
        """Logarithms of the clients' shares of all samples, ``[K]``."""
        rng = stream(seed, "gets")
        if self.alpha is not None:
            return log_dirichlet(rng, self.alpha, (1, num_clients))[0]
        assert self.power is not None  # one of the two is there
        log_q = -self.power * np.log(1 + rng.permutation(num_clients))
        return log_q - np.log(np.exp(log_q).sum())

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray:
        return row_shares(np.tile(class_sizes, (num_clients, 1)))


class ByColumn(Partition):
    """Every sample belongs to a client already, by a column, a list, or a file.

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
        require(
            self._owners is not None, "`ByColumn` does not know the samples' clients: call its `for_samples` first."
        )
        owners = np.asarray(self._owners)
        require(len(owners) == num_samples, f"`owners` must be [{num_samples}], one per sample, got {len(owners)}.")
        require(int(owners.max()) < num_clients, f"`owners` must lie in [0, {num_clients}), got {owners.max()}.")
        return grouped(np.arange(num_samples), owners, num_clients)


def _as_array(given: list[int] | list[str] | str | None) -> np.ndarray | str | None:
    """A list as an array, of which records show the length alone."""
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
