"""Why a client brought nothing: in a line for whoever watches, in full for whoever looks into it."""

import traceback
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass
class Failure:
    """Why a client brought nothing this round."""

    reason: str
    details: str = ""


def failure(error: Exception) -> Failure:
    """What went wrong, in a line and in full."""
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    hint = " (a batch of one sample; see `data.drop_last`)" if "more than 1 value per channel" in reason else ""
    return Failure(reason + hint, traceback.format_exc())


def all_failed(failures: Mapping[int, Failure]) -> RuntimeError:
    """What a round without a single upload ends in."""
    k, failure = next(iter(failures.items()))
    return RuntimeError(f"Every client of the round failed; client {k}: {failure.reason}\n{failure.details}")
