"""What a round left to record: metrics, what crossed a border, and why a client brought nothing."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field

from fedlit.records.rows import EpochRow, LedgerRow, Row


@dataclass
class Failure:
    """Why a client brought nothing this round: in a line for whoever watches, in full for whoever looks into it."""

    reason: str
    details: str = ""


@dataclass
class RoundRecord:
    """What a round left to record."""

    rows: list[Row] = field(default_factory=list)
    epochs: list[EpochRow] = field(default_factory=list)
    ledger: list[LedgerRow] = field(default_factory=list)
    failures: dict[int, Failure] = field(default_factory=dict)
    clients: list[int] = field(default_factory=list)


def failure(error: Exception) -> Failure:
    """What went wrong, in a line and in full."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    if "more than 1 value per channel" in reason:
        reason += " (a batch of one sample; see `data.drop_last`)"
    if "view size is not compatible" in reason:
        reason += " (`trainer.fast` holds kernels channels last: `reshape` takes what `view` does not)"
    return Failure(reason, traceback.format_exc())


def all_failed(failures: Mapping[int, Failure]) -> RuntimeError:
    """What a round without a single upload ends in."""
    k, failure = next(iter(failures.items()))
    return RuntimeError(f"Every client of the round failed; client {k}: {failure.reason}\n{failure.details}")
