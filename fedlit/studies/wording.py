"""Numbers and tables of a study as text, in per cent where papers use it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import isnan
from typing import TYPE_CHECKING

from fedlit.records.rows import CONVERGENCE
from fedlit.studies.measure import Measure
from fedlit.studies.study import Cell

if TYPE_CHECKING:
    from fedlit.studies.statistics import Estimate  # scipy takes long to import

UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B"))


def short(name: str, most: int) -> str:
    """A name that fits.

    Example:
        >>> short("FedAvg with momentum", 10)
        'FedAvg wi…'
    """
    return name if len(name) <= most else f"{name[: most - 1]}…"


def size(number: float) -> str:
    """Bytes as one would say them; a kB has 1,000.

    Example:
        >>> size(7108160), size(512), size(0)
        ('7.11 MB', '512 B', '0 B')
    """
    factor, unit = unit_of(number)
    if factor == 1:
        return f"{number:.0f} B"
    return f"{number / factor:.2f} {unit}"


def unit_of(number: float) -> tuple[float, str]:
    """The unit for a number of bytes, and its factor."""
    for factor, unit in UNITS:
        if number >= factor:
            return factor, unit
    return UNITS[-1]


def p_value(p: float) -> str:
    """A p-value to three digits.

    Example:
        >>> p_value(0.0123), p_value(0.00004)
        ('p = 0.012', 'p < 0.001')
    """
    if isnan(p):
        return ""
    if p < 0.001:
        return "p < 0.001"
    return f"p = {p:.3f}"


def metric_factor(measure: Measure) -> float:
    """What values of the metric itself are multiplied by where they are shown."""
    return 100.0 if measure.percent else 1.0


def metric_label(measure: Measure) -> str:
    """The metric with its unit, for an axis.

    Example:
        >>> metric_label(Measure(at="best", over_clients="worst"))
        'acc/client_on_own of the worst client in %'
    """
    return str(replace(measure, at="last")).removesuffix(", last")


def steps(cells: Iterable[Cell]) -> str:
    """What curves of some cells are drawn over, for an axis."""
    return " or ".join(dict.fromkeys(cell.measure.step for cell in cells))


def metric_value(value: float, measure: Measure) -> str:
    """A value of the metric itself, such as one client's.

    Example:
        >>> metric_value(0.87654, Measure())
        '87.65'
    """
    if isnan(value):
        return ""
    shown = value * metric_factor(measure)
    return _fixed(shown, _decimals(shown, measure))


def plus_minus(mean: float, sd: float, measure: Measure) -> str:
    """A mean with its standard deviation; without one where there is a single run.

    Example:
        >>> plus_minus(0.87654, 0.0123, Measure()), plus_minus(7e6, 1e5, Measure(at="bytes_to_target", target=0.9))
        ('87.65 ± 1.23', '7.00 ± 0.10 MB')
        >>> plus_minus(8.9, 0.5477, Measure("epochs_to_converge/personal_on_unseen", percent=False))
        '8.9 ± 0.5'
    """
    factor, decimals, unit = _scale(mean, measure)
    text = _fixed(mean * factor, decimals)
    if not isnan(sd):
        text += f" ± {_fixed(sd * factor, decimals)}"
    return text + unit


def difference(found: "Estimate", measure: Measure) -> str:
    """A difference with its interval and p.

    Example:
        >>> from fedlit.studies.statistics import Estimate
        >>> difference(Estimate(3, 0.031, 0.01, 0.012, 0.05, 0.0123), Measure())
        '+3.10 [+1.20, +5.00], p = 0.012'
    """
    factor, decimals, unit = _scale(found.mean, measure)
    parts = [f"{value * factor:+.{decimals}f}" for value in (found.mean, found.low, found.high)]
    if isnan(found.low):
        return f"{parts[0]}{unit}"
    return f"{parts[0]} [{parts[1]}, {parts[2]}]{unit}, {p_value(found.p)}"


def measured(cells: Iterable[Cell]) -> str:
    """What the numbers of a table are: once, if it is the same everywhere.

    Example:
        >>> cells = [Cell("FML", "", "", (), Measure()), Cell("MoE", "", "", (), Measure(at="best"))]
        >>> measured(cells[:1])
        'acc/client_on_own in %, last'
        >>> measured(cells)
        'acc/client_on_own in %, last (FML); acc/client_on_own in %, best (MoE)'
    """
    owners: dict[str, list[Cell]] = {}
    cells = list(cells)
    for cell in cells:
        owners.setdefault(str(cell.measure), []).append(cell)
    if len(owners) == 1:
        return next(iter(owners))
    return "; ".join(f"{name} ({_names(owned, cells)})" for name, owned in owners.items())


def _names(owned: list[Cell], cells: list[Cell]) -> str:
    """Columns, if the measure is a matter of columns; else rows, if of rows; else every cell."""
    columns = dict.fromkeys(cell.column for cell in owned)
    if len([cell for cell in cells if cell.column in columns]) == len(owned) and "" not in columns:
        return ", ".join(columns)
    rows = dict.fromkeys(cell.row for cell in owned)
    if len([cell for cell in cells if cell.row in rows]) == len(owned):
        return ", ".join(rows)
    return "; ".join(map(str, owned))


def _scale(mean: float, measure: Measure) -> tuple[float, int, str]:
    """Factor, decimals and unit of a measured number."""
    if measure.at == "bytes_to_target":
        bytes_of_unit, unit = unit_of(abs(mean))
        return 1 / bytes_of_unit, 0 if unit == "B" else 2, f" {unit}"
    if measure.at == "seconds_to_target":
        return 1.0, 1, " s"
    if measure.at == "rounds_to_target":
        return 1.0, 1, ""
    return metric_factor(measure), _decimals(mean, measure), ""


def _decimals(value: float, measure: Measure) -> int:
    """Decimals for about four significant digits."""
    if measure.percent:
        return 2
    if measure.metric.startswith(f"{CONVERGENCE}/"):  # a count
        return 1
    if abs(value) < 10:
        return 4
    return 2 if abs(value) < 1000 else 0


def _fixed(value: float, decimals: int) -> str:
    return f"{value:.{decimals}f}"


class Bold(str):
    """A cell in bold: the best of its column."""


class Paper(str):
    """The head of a column that holds the paper's numbers of the column before it."""


@dataclass(frozen=True)
class Grid:
    """A table as text in rows and columns, for any format.

    Attributes:
        title: What it shows.
        head: Names of its columns; the first is empty.
        rows: Cells, some `Bold`; the first of each row is its name.
        note: What a reader must know.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    note: str = ""
