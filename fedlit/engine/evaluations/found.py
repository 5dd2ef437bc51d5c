"""What an evaluation found, and of which client it could not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from torch import Tensor

from fedlit.engine.guards.child_process import in_child
from fedlit.engine.module.isolation import ModuleSnapshot
from fedlit.engine.scoring.tally import Scores
from fedlit.engine.states.state import FederationState
from fedlit.engine.usage import UsageError
from fedlit.records.round_record import Failure, reported


@dataclass
class Found:
    """What an evaluation found, and of which client it could not: plain values, which can go to other processes.

    `failed` holds the fields of a `Failure`. `confused` tells of the global model on the test set, see `confusion`.
    """

    values: list[tuple[int | str, str, str, str, float]] = field(default_factory=list)
    failed: dict[int, dict[str, Any]] = field(default_factory=dict)
    confused: Tensor | None = None

    def add(self, client: int | str, model: str, data: str, scores: Scores) -> None:
        self.values += [(client, model, data, name, value) for name, value in scores.items()]


def found_of(state: FederationState, before: ModuleSnapshot, k: int, look: Callable[[], Found]) -> Found:
    """What is found of a client, or why nothing is: its model must not keep the others from being looked at."""

    def evaluated() -> Found:
        found = state.live.attempt(look, before)
        return Found(failed={k: vars(found)}) if isinstance(found, Failure) else found

    timeout = state.options.client_timeout
    if timeout is None:
        return evaluated()
    found = in_child(evaluated, timeout, bool, pack, partial(checked_found, k))
    return Found(failed={k: vars(found)}) if isinstance(found, Failure) else found


def check_usage(looks: Sequence[Found]) -> None:
    """A mistake that every client's look runs into is the method's, and ends the run; one client's is its own."""
    mistakes = [told["reason"] for found in looks for told in found.failed.values() if told["is_usage"]]
    if mistakes and len(mistakes) == len(looks):
        raise UsageError(mistakes[0].partition(": ")[2])


def pack(found: Found) -> dict[str, Any]:
    return vars(found)


def unpack(packed: dict[str, Any]) -> Found:
    return Found(**packed)


def checked_found(k: int, packed: Mapping[str, Any]) -> Found:
    """What was found of a client in its own process or on its host, if that tells of this client and of numbers."""
    found = Found()
    for client, model, data, metric, value in packed["values"]:
        if client != k or not isinstance(value, float):
            raise ValueError(f"it tells of client {client}: {metric!r} is {value!r}.")
        found.values.append((k, str(model), str(data), str(metric), value))
    for client, told in packed["failed"].items():
        if client != k:
            raise ValueError(f"it tells of client {client}.")
        found.failed[k] = vars(reported(told))
    return found
