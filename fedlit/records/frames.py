"""Records of a run as data frames; needs the extra `report`."""

import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlit.records.rows import POOLED, Row

if TYPE_CHECKING:
    from pandas import DataFrame

KINDS = {
    "round": "int64",
    "stage": "string",
    "client": "Int64",
    "model": "string",
    "data": "string",
    "metric": "string",
}
SHOWN = 40  # characters of a line


def read_metrics(run: str | Path) -> "DataFrame":
    """metrics.csv of a run, a line a row: what was measured, of which model, on whose data.

    Columns are those of the file: `round` (integer), `stage`, `client` (integer, and ``<NA>`` for the pooled test set,
    which is nobody's), `model`, `data`, `metric` (strings) and `value` (float). A run that is still going on may be
    read: a line that is half written is left out.

    Args:
        run: The run's folder, such as ``lightning_logs/version_0``.
    """
    try:
        import pandas  # noqa: F401  # `read_table` needs it
    except ImportError as error:
        raise ImportError("`fedlit.read_metrics` needs pandas; install it by: pip install 'fedlit[report]'") from error
    path = Path(run).expanduser() / "metrics.csv"
    if not path.is_file():
        raise ValueError(f"`run` must be the folder of a run, got {run}: there is no {path}.")
    frame = read_table(path, Row._fields, KINDS, na_values={"client": [POOLED]})
    return frame.astype({"value": "float64"})  # without lines there was nothing to tell it by


def read_table(path: Path, columns: tuple[str, ...], kinds: Mapping[str, str], **options: Any) -> "DataFrame":
    """A table of a run's records, without the half line that a killed run may have left at its end.

    Args:
        path: Of the file.
        columns: Those that a run writes, in their order; the first is a whole number and the last a number.
        kinds: Their types; that of the last may be left out, and is float then.
        options: Further ones of `pandas.read_csv`.

    Raises:
        ValueError: The file has other columns, or a line that no run has written.
    """
    import pandas

    whole, end, _ = path.read_text(encoding="utf-8", errors="replace").rpartition("\n")
    lines = whole.split("\n")
    _check_header(path, lines[0] if end else "", columns)
    number = _wrong_line(lines, columns)
    if number is not None:
        raise ValueError(f"line {number} of {path} is not one that a run writes: {lines[number - 1][:SHOWN]!r}.")
    if columns[-1] not in kinds:
        options["converters"] = {columns[-1]: float}  # older versions of pandas would round the last bit
    try:
        return pandas.read_csv(io.StringIO(whole), dtype=dict(kinds), keep_default_na=False, **options)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error


def _check_header(path: Path, header: str, columns: tuple[str, ...]) -> None:
    if header == ",".join(columns):
        return
    found = header.split(",")
    missing = [name for name in columns if name not in found]
    unknown = [name for name in found if name not in columns]
    if missing:
        what = f"the column `{missing[0]}` is missing"
    elif unknown:
        what = f"the column `{unknown[0]}` is not known"
    else:
        what = "the columns are in another order"
    raise ValueError(f"{path} must begin with {','.join(columns)!r}, got {header!r}: {what}.")


def _wrong_line(lines: list[str], columns: tuple[str, ...]) -> int | None:
    """The number of the first line below the header that no run writes; None if there is none."""
    reader = csv.reader(lines[1:], strict=True)
    try:
        for cells in reader:
            if len(cells) != len(columns) or not cells[0].isdecimal():
                break
            float(cells[-1])
        else:
            return None
    except (csv.Error, ValueError):
        pass
    return reader.line_num + 1
