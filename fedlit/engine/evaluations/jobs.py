"""The evaluations of a round: shared out over processes, or made by the hosts of the clients."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedlit.engine.cluster.processes import in_order
from fedlit.engine.cluster.shares import at_home
from fedlit.engine.evaluations.found import Found, pack, unpack
from fedlit.engine.states.state import FederationState
from fedlit.rng import derive, isolated

if TYPE_CHECKING:
    from fedlit.engine.evaluations.evaluation import Scorer

GROUP_BATCHES = 4  # clients that share batches fill so many, whatever the number of processes
SERVERS = "pooled"  # what the server evaluates itself, on the test set, wherever clients are


@dataclass(frozen=True)
class Job:
    """An evaluation that one process does for all; `what` and `whose` name its random stream."""

    what: str
    whose: int
    evaluate: Callable[[], Found]


def consecutive(clients: Sequence[int], sizes: Sequence[int], batch_size: int) -> list[list[int]]:
    """Groups of clients in order, each closed as soon as it fills enough batches.

    Args:
        clients: Of whom each is in one group.
        sizes: How many samples each has.
        batch_size: Of an evaluation.

    Example:
        >>> consecutive([0, 1, 4, 5], [60, 60, 200, 10], batch_size=25)
        [[0, 1], [4], [5]]
    """
    least = GROUP_BATCHES * batch_size
    groups: list[list[int]] = []
    num_samples = least
    for k, size in zip(clients, sizes, strict=True):
        if num_samples >= least:
            groups.append([])
            num_samples = 0
        groups[-1].append(k)
        num_samples += size
    return groups


def look(scorer: "Scorer", job: Job, round: int) -> Found:
    """One evaluation, by a random stream of its own."""
    with isolated(derive(scorer.state.options.seed, "evaluate", scorer.stage.name, round, job.what, job.whose)):
        return job.evaluate()


def looked(scorer: "Scorer", jobs: list[Job], round: int) -> Iterator[tuple[Job, Found]]:
    """What each evaluation found, in order; those of clients are made on their own hosts, if they have some."""
    hosts = scorer.state.hosts
    if hosts is not None:
        asked = [(job.what, job.whose) for job in jobs if job.what != SERVERS]
        answers = iter(hosts.found(scorer, round, asked))
        for job in jobs:
            yield job, look(scorer, job, round) if job.what == SERVERS else next(answers)
        return

    def work(i: int) -> Found:
        return look(scorer, jobs[i], round)

    for i, found in in_order(scorer.state.fabric, range(len(jobs)), work, pack, unpack, _owners(scorer, jobs)):
        yield jobs[i], found


def _owners(scorer: "Scorer", jobs: Sequence[Job]) -> list[int]:
    """The process of each job: the home of the client whose own part is looked at."""
    whose = [None if job.what in (SERVERS, "global") else job.whose for job in jobs]
    return at_home(whose, scorer.state.homes, scorer.state.fabric.world_size)


def each_at_home(state: FederationState, clients: Sequence[int], look: Callable[[int], Found]) -> Iterator[Found]:
    """What is found of each client's own model, by the process that has it."""
    owners = at_home(clients, state.homes, state.fabric.world_size)
    for _, found in in_order(state.fabric, clients, look, pack, unpack, owners):
        yield found
