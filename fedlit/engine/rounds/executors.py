"""Where the clients of a round train: in this process, on several processes, or on hosts of their own.

An executor yields what came of each client in client order, and the round's own loop is the only consumer.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from fedlit.engine.cluster.processes import in_order
from fedlit.engine.rounds.visited import Visited, pack, unpack, without_values
from fedlit.engine.rounds.visiting import Visits
from fedlit.engine.states.homes import share_out

if TYPE_CHECKING:
    from fedlit.engine.rounds.round import ClientRound


class Executor(Protocol):
    """Trains the clients of a round."""

    def train(self) -> Iterator[tuple[int, Visited]]:
        """What came of each client, in the order of client ids."""


class SerialExecutor:
    """One client after the other, in this process.

    Args:
        round: Whose clients train.
        runner: Trains one.
    """

    def __init__(self, round: "ClientRound", runner: Visits) -> None:
        self.round = round
        self.runner = runner

    def train(self) -> Iterator[tuple[int, Visited]]:
        profiler = self.round.state.options.profiler
        for position, k in enumerate(self.round.clients, 1):
            self.round.report(position, len(self.round.clients))
            with profiler.profile("local_training"):
                result = self.runner(k)
            yield k, result


class ProcessExecutor:
    """Clients shared out over the processes of a run. Uploads and states stay on the rank that trained the client.

    Args:
        round: Whose clients train.
        runner: Trains one, of this rank.
    """

    def __init__(self, round: "ClientRound", runner: Visits) -> None:
        self.round = round
        self.runner = runner

    def train(self) -> Iterator[tuple[int, Visited]]:
        round = self.round
        owners = share_out(round.state, round.clients)
        round.owners = dict(zip(round.clients, owners, strict=True))
        positions = {k: position for position, k in enumerate(round.clients, 1)}
        profiler = round.state.options.profiler

        def work(k: int) -> Visited:
            round.report(positions[k], len(round.clients))
            with profiler.profile("local_training"):
                result = self.runner(k)
            return without_values(round.kept_here(k, result))

        yield from in_order(round.state.fabric, round.clients, work, pack, unpack, owners)


class RemoteExecutor:
    """Clients on hosts of their own, whose answers are validated here.

    Args:
        round: Whose clients train.
    """

    def __init__(self, round: "ClientRound") -> None:
        self.round = round

    def train(self) -> Iterator[tuple[int, Visited]]:
        round = self.round
        hosts = round.state.hosts
        assert hosts is not None
        positions = {k: position for position, k in enumerate(round.clients, 1)}
        for k, result, sent in hosts.visited(round):
            round.report(positions[k], len(round.clients))
            yield k, round.validated_again(result, sent)


def executor_of(round: "ClientRound", runner: Visits) -> Executor:
    """As the federation runs."""
    if round.state.hosts is not None:
        return RemoteExecutor(round)
    if round.state.fabric.world_size > 1:
        return ProcessExecutor(round, runner)
    return SerialExecutor(round, runner)
