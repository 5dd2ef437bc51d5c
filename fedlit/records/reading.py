"""Reads the records of a run: checks them, drops what is after the last saved round, and gives data frames.

A run that is killed while it writes leaves half a line at the end of a file; every other line is whole.
"""

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from fedlit.records.files import write_whole
from fedlit.records.rows import POOLED, EpochRow, LedgerRow, Row

if TYPE_CHECKING:
    from pandas import DataFrame

METRICS = "metrics.csv"
LEDGER = "ledger.csv"
EPOCHS = "epochs.csv"
EVENTS = "events.jsonl"
TABLES: dict[str, tuple[str, ...]] = {METRICS: Row._fields, LEDGER: LedgerRow._fields, EPOCHS: EpochRow._fields}
# Written again when a round is repeated.
OF_ROUNDS = {"round", "left_out", "steps_skipped", "too_few", "not_evaluated", "metric_left_out"}
DETAILS: dict[str, dict[str, type | tuple[type, ...]]] = {  # of events that are read back, with their types
    "round": {"round": int, "seconds": (int, float)},
    "left_out": {"round": int, "client": int, "reason": str},
    "end": {"round": int, "stopped_by": (int, NoneType)},
}
TEXTS = ("stage", "model", "data", "metric")
KINDS = {"round": "int64", "client": "Int64", **dict.fromkeys(TEXTS, "string")}
UNREADABLE = "\ufffd"  # stands for what is not UTF-8
SHOWN = 40  # characters of a line


def check_records(folder: Path) -> None:
    """Refuse records with lines that no run writes; half a line at the end is what a kill leaves."""
    for name in (*TABLES, EVENTS):
        for number, text in enumerate(_whole_lines(folder / name), 1):
            if not _is_ours(name, number, text):
                where = f"line {number} of {folder / name}"
                raise ValueError(
                    f"`--ckpt_path`: {where} is none that a run has written: {_shown(text)!r}; remove or fix it."
                )


def _is_ours(name: str, number: int, text: str) -> bool:
    if name == EVENTS:
        return _event(text) is not None
    if number == 1:
        return text == ",".join(TABLES[name])
    return _round_of(text, TABLES[name]) is not None


def rewind(folder: Path, last_round: int) -> None:
    """Drop lines of rounds after the last one, which a killed run may have written; begin the records of a new run."""
    for name, columns in TABLES.items():
        path = folder / name
        if name == EPOCHS and not path.exists():
            continue
        rows = [(_round_of(text, columns), text) for text in _whole_lines(path)[1:]]
        kept = [text for round, text in rows if round is not None and round <= last_round]
        write_whole(path, "".join(f"{text}\n" for text in (",".join(columns), *kept)))
    events = [(_event(text) or {}, text) for text in _whole_lines(folder / EVENTS)]
    kept = [t for event, t in events if event.get("event") not in OF_ROUNDS or event.get("round", 0) <= last_round]
    write_whole(folder / EVENTS, "".join(f"{text}\n" for text in kept))


def cut_off(folder: Path) -> list[str]:
    """Names of the records that end in half a line."""
    contents = {name: (folder / name).read_bytes() for name in (*TABLES, EVENTS) if (folder / name).is_file()}
    return [name for name, content in contents.items() if content and not content.endswith(b"\n")]


def read_events(path: Path) -> list[dict[str, Any]]:
    """Read events.jsonl of a run, without half a line at its end; ValueError if a line is not an event of a run."""
    events = []
    for number, text in enumerate(_whole_lines(path), 1):
        event = _event(text)
        if event is None:
            raise ValueError(f"line {number} of {path} is not an event that a run writes: {_shown(text)!r}.")
        for name, kind in DETAILS.get(event["event"], {}).items():
            if not isinstance(event.get(name, ...), kind):
                raise ValueError(f"line {number} of {path}: the event `{event['event']}` has no valid `{name}`.")
        events.append(event)
    return events


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _whole_lines(path: Path) -> list[str]:
    """The lines that end in a newline."""
    if not path.exists():
        return []
    return [line.decode(errors="replace") for line in path.read_bytes().split(b"\n")[:-1]]


def _round_of(text: str, columns: tuple[str, ...]) -> int | None:
    """The round of a line of a table; None if it is not a line that a run writes."""
    try:
        [cells] = csv.reader([text], strict=True)
        float(cells[-1])
    except (csv.Error, ValueError, IndexError):
        return None
    is_one = len(cells) == len(columns) and cells[0].isdecimal() and text.isprintable() and UNREADABLE not in text
    return int(cells[0]) if is_one else None


def _event(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and isinstance(found.get("event"), str) else None


def read_metrics(run: str | Path) -> "DataFrame":
    """Read metrics.csv of a run: what was measured, of which model, on whose data.

    Columns are those of the file: `round` (integer), `stage`, `client` (integer, and ``<NA>`` for the pooled test set),
    `model`, `data`, `metric` (strings) and `value` (float). A running fit may be read: a line that is half written is
    left out.

    Args:
        run: The run's folder, such as ``lightning_logs/version_0``.
    """
    try:
        import pandas  # noqa: F401  # `read_table` needs it
    except ImportError as error:
        raise ImportError("`fedlit.read_metrics` needs pandas; install it by: pip install 'fedlit[report]'") from error
    path = Path(run).expanduser() / METRICS
    if not path.is_file():
        raise ValueError(f"`run` must be the folder of a run, got {run}: there is no {path}.")
    frame = read_table(path, Row._fields, KINDS, na_values={"client": [POOLED]})
    return frame.astype({"value": "float64"})  # pandas cannot infer the type of no lines


def read_table(path: Path, columns: tuple[str, ...], kinds: Mapping[str, str], **options: Any) -> "DataFrame":
    """Read a table of a run's records, without the half line that a killed run may have left at its end.

    `columns` are those that a run writes, the first an integer and the last a number; `kinds` are their types, float
    for the last by default; `options` are those of `pandas.read_csv`. Raises ValueError for a line that no run writes.
    """
    import pandas

    path.stat()  # raises where there is no file
    header, *lines = _whole_lines(path) or [""]
    if header != ",".join(columns):
        raise ValueError(f"{path} must begin with {','.join(columns)!r}, got {header!r}.")
    for number, text in enumerate(lines, 2):
        if _round_of(text, columns) is None:
            raise ValueError(f"line {number} of {path} is not one that a run writes: {_shown(text)!r}.")
    if columns[-1] not in kinds:
        options["converters"] = {columns[-1]: float}  # older versions of pandas would round the last bit
    try:
        whole = io.StringIO("\n".join((header, *lines)))
        return pandas.read_csv(whole, dtype=dict(kinds), keep_default_na=False, **options)
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{path} cannot be read: {error}.") from error
