"""What a round records: metrics, bytes sent, and why clients failed."""

import re
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlit.records.rows import EpochRow, LedgerRow, Row

LONGEST_REASON, LONGEST_DETAILS = 500, 20_000  # characters
PLACE = re.compile(r'^ +File "(.+)", line (\d+), in ', re.MULTILINE)  # in a traceback
HINTS = {  # of torch's errors
    "more than 1 value per channel": "a batch of one sample; see `data.drop_last`",
    "view size is not compatible": "`trainer.fast` computes images channels last: `reshape` takes what `view` does not",
    "use_deterministic_algorithms": "see `trainer.deterministic`",
}
NOT_OWN = ("site-packages", "dist-packages", str(Path(__file__).parents[1]), "<")


@dataclass
class Failure:
    """Why a client has no valid result this round: one line to print, and details to look into.

    `is_usage` marks a mistake in how the method uses Lightning.
    """

    reason: str
    details: str = ""
    is_usage: bool = False

    @property
    def summary(self) -> str:
        """The reason, and the line of the user's own code in which it arose, if it did there.

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
    """What a round records.

    `overflowed` has the number of steps of clients, or of the server, all of whose steps were skipped because gradients
    overflowed (16-mixed); `is_whole` says whether enough clients had a valid result.
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
    """The failure of an error, in a line and in full; its text may raise, too."""
    found = traceback.TracebackException.from_exception(error)
    reason = f"{type(error).__name__}: {found}".splitlines()[0]
    for symptom, hint in HINTS.items():
        if symptom in reason:
            reason += f" ({hint})"
    return Failure(_printable(reason)[:LONGEST_REASON], _encodable("".join(found.format()))[-LONGEST_DETAILS:])


def reported(message: Mapping[str, Any]) -> Failure:
    """A failure as another process or host reports it, cut to our own lengths and without control characters."""
    reason = _printable(str(message["reason"]))[:LONGEST_REASON]
    details = _encodable(str(message.get("details", "")))[-LONGEST_DETAILS:]
    return Failure(reason, details, is_usage=bool(message["is_usage"]))


def _encodable(text: str) -> str:
    """Half of a surrogate pair can be in a string, and in no file."""
    return text.encode("utf-8", "backslashreplace").decode()


def _printable(text: str) -> str:
    """Without what a terminal would take for a command."""
    return "".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in _encodable(text))
