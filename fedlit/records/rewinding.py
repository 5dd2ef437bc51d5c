"""The records of a run that goes on: looked at before anything is written, and taken back to its last saved round.

A run that is killed while it writes leaves half a line at the end of a file, and no other line that is not whole.
"""

import csv
import json
from pathlib import Path
from types import NoneType
from typing import Any, NoReturn

from fedlit.records.rows import EpochRow, LedgerRow, Row
from fedlit.records.whole_files import write_whole

EPOCHS = "epochs.csv"
EVENTS = "events.jsonl"
TABLES: dict[str, tuple[str, ...]] = {
    "metrics.csv": Row._fields,
    "ledger.csv": LedgerRow._fields,
    EPOCHS: EpochRow._fields,
}
# Written again when a round is repeated.
OF_ROUNDS = {"round", "left_out", "steps_skipped", "too_few", "not_evaluated", "metric_left_out"}
DETAILS: dict[str, dict[str, type | tuple[type, ...]]] = {  # of events that are read back, with their types
    "round": {"round": int, "seconds": (int, float)},
    "left_out": {"round": int, "client": int, "reason": str},
    "end": {"round": int, "stopped_by": (int, NoneType)},
}
UNREADABLE = "\ufffd"  # stands for what is not UTF-8
SHOWN = 40  # characters of a line


def check_records(folder: Path) -> None:
    """Refuse records with lines that no run has written; half a line at the end is left by a kill."""
    for name, columns in TABLES.items():
        for number, text in enumerate(_whole_lines(folder / name), 1):
            is_right = text == ",".join(columns) if number == 1 else _round_of(text, columns) is not None
            if not is_right:
                _refuse(folder / name, number, text)
    for number, text in enumerate(_whole_lines(folder / EVENTS), 1):
        if _event(text) is None:
            _refuse(folder / EVENTS, number, text)


def rewind(folder: Path, last_round: int) -> None:
    """Keep what is of rounds up to this: a killed run may have written more."""
    for name, columns in TABLES.items():
        path = folder / name
        if name == EPOCHS and not path.exists():  # few runs have one
            continue
        kept = [",".join(columns) + "\n"]
        for text in _whole_lines(path)[1:]:
            round = _round_of(text, columns)
            if round is not None and round <= last_round:
                kept.append(f"{text}\n")
        write_whole(path, "".join(kept))
    if (folder / EVENTS).exists():
        told = [text for text in _whole_lines(folder / EVENTS) if not _is_later(_event(text) or {}, last_round)]
        write_whole(folder / EVENTS, "".join(f"{text}\n" for text in told))


def cut_off(folder: Path) -> list[str]:
    """Names of the records that end in half a line."""
    found = []
    for name in (*TABLES, EVENTS):
        content = (folder / name).read_bytes() if (folder / name).is_file() else b""
        if content and not content.endswith(b"\n"):
            found.append(name)
    return found


def read_events(path: Path) -> list[dict[str, Any]]:
    """events.jsonl of a run, without half a line at its end.

    Raises:
        ValueError: A line is no event, or an event lacks what it must have.
    """
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


def _refuse(path: Path, number: int, text: str) -> NoReturn:
    raise ValueError(
        f"`--ckpt_path`: line {number} of {path} is none that a run has written: {_shown(text)!r}; "
        "take it out or mend it."
    )


def _shown(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]} ..."


def _whole_lines(path: Path) -> list[str]:
    """Those that end."""
    if not path.exists():
        return []
    return [line.decode(errors="replace") for line in path.read_bytes().split(b"\n")[:-1]]


def _round_of(text: str, columns: tuple[str, ...]) -> int | None:
    """Of a line of a table; None if it is none."""
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


def _is_later(event: dict[str, Any], last_round: int) -> bool:
    return event.get("event") in OF_ROUNDS and event.get("round", 0) > last_round
