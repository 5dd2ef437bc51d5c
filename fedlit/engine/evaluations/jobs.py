"""Evaluations as jobs, which processes share."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from fedlit.engine.cluster.processes import in_order
from fedlit.engine.cluster.shares import at_home
from fedlit.engine.evaluations.found import Found, pack, unpack
from fedlit.engine.states.state import FederationState


@dataclass(frozen=True)
class Job:
    """An evaluation that one process does for all; `what` and `whose` name its random stream."""

    what: str
    whose: int
    evaluate: Callable[[], Found]


def owners_of(jobs: Sequence[Job], state: FederationState, server_has_all: bool) -> list[int]:
    """The process of each job: the home of the client whose own part is looked at.

    Args:
        jobs: Of an evaluation.
        state: Of the federation.
        server_has_all: Whether the global model has no part that is a client's own.
    """
    of_nobody = ("pooled", "global") if server_has_all else ("pooled",)
    whose = [None if job.what in of_nobody else job.whose for job in jobs]
    return at_home(whose, state.homes, state.fabric.world_size)


def looks_at_home(state: FederationState, clients: Sequence[int], look: Callable[[int], Found]) -> Iterator[Found]:
    """What is found of each client, by the process that has what stays with it."""
    owners = at_home(clients, state.homes, state.fabric.world_size)
    for _, found in in_order(state.fabric, clients, look, pack, unpack, owners):
        yield found
