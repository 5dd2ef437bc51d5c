"""What a round left to record: metrics, what crossed a border, and why a client brought nothing."""

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlit.records.rows import EpochRow, LedgerRow, Row

LONGEST_REASON, LONGEST_DETAILS = 500, 20_000  # characters
PLACE = re.compile(r'^ +File "(.+)", line (\d+), in ', re.MULTILINE)  # in a traceback
NOT_OWN = ("site-packages", "dist-packages", str(Path(__file__).parents[1]), "<")


@dataclass
class Failure:
    """Why a client brought nothing this round: in a line for whoever watches, in full for whoever looks into it.

    `is_usage` tells a mistake in how its method uses Lightning.
    """

    reason: str
    details: str = ""
    is_usage: bool = False

    @property
    def summary(self) -> str:
        """The reason, and where in somebody's own code it arose, if it did there.

        Example:
            >>> Failure("KeyError: 'x'", '  File "/home/me/mine.py", line 6, in training_step').summary
            "KeyError: 'x' (mine.py, line 6)"
        """
        for path, line in reversed(PLACE.findall(self.details)):
            if not any(part in path for part in NOT_OWN):
                return f"{self.reason} ({Path(path).name}, line {line})"
        return self.reason


@dataclass
class RoundRecord:
    """What a round left to record: at which attempt, and whether enough clients brought something usable for it.

    `overflowed` holds the number of steps of clients, or of the server, of whose steps every one was skipped because
    gradients overflowed (16-mixed).
    """

    rows: list[Row] = field(default_factory=list)
    epochs: list[EpochRow] = field(default_factory=list)
    ledger: list[LedgerRow] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    overflowed: dict[int, int] = field(default_factory=dict)
    clients: list[int] = field(default_factory=list)
    is_whole: bool = True
    attempt: int = 1


def failure(error: BaseException) -> Failure:
    """What went wrong, in a line and in full; an error may be anything, also one that cannot be told."""
    lines = f"{_name(error)}: {_text(error)}".splitlines()
    reason = _printable(lines[0])[:LONGEST_REASON]
    if "more than 1 value per channel" in reason:
        reason += " (a batch of one sample; see `data.drop_last`)"
    if "view size is not compatible" in reason:
        reason += " (`trainer.fast` computes images channels last: `reshape` takes what `view` does not)"
    if "use_deterministic_algorithms" in reason:
        reason += " (see `trainer.deterministic`)"
    try:
        details = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    except BaseException:  # its text, its cause or its notes are not to be had
        details = "".join(traceback.format_tb(error.__traceback__)) + reason
    return Failure(reason, _encodable(details)[-LONGEST_DETAILS:])


def reported(told: Mapping[str, Any]) -> Failure:
    """A failure as another process or host reports it: no longer than our own, and nothing that a terminal obeys."""
    reason = _printable(str(told["reason"]))[:LONGEST_REASON]
    details = _encodable(str(told.get("details", "")))[-LONGEST_DETAILS:]
    return Failure(reason, details, is_usage=bool(told["is_usage"]))


def _name(error: BaseException) -> str:
    try:
        return str(type(error).__name__)
    except BaseException:  # a class may have a metaclass
        return "an error without a name"


def _text(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException:  # it runs a client's code, too
        return "(its text cannot be had)"


def _encodable(text: str) -> str:
    """Half of a surrogate pair can be in a string, and in no file."""
    return text.encode("utf-8", "backslashreplace").decode()


def _printable(text: str) -> str:
    """Without what a terminal would take for a command."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in _encodable(text))
