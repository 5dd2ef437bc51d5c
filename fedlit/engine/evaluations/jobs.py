"""The evaluations of a round: shared out over processes, or made by the hosts of the clients."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedlit.engine.cluster.processes import in_order
from fedlit.engine.evaluations.found import Found, pack, unpack
from fedlit.rng import derive, isolated

if TYPE_CHECKING:
    from fedlit.engine.evaluations.evaluation import Scorer

SERVERS = "pooled"  # what the server evaluates itself, on the test set, wherever clients are


@dataclass(frozen=True)
class Job:
    """An evaluation that one process does for all; `what` and `whose` name its random stream."""

    what: str
    whose: int
    evaluate: Callable[[], Found]


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

    for i, found in in_order(scorer.state.fabric, range(len(jobs)), work, pack, unpack):
        yield jobs[i], found
