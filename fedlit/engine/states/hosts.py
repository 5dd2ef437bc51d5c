"""Clients that live on hosts of their own: what the engine asks of them where it does not visit them itself."""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from fedlit.engine.evaluations.evaluation import Scorer
    from fedlit.engine.evaluations.found import Found
    from fedlit.engine.rounds.round import ClientRound
    from fedlit.engine.rounds.visited import Visited
    from fedlit.engine.states.sending import Sent

Names = dict[int, tuple[str, ...]]  # of what stays with each client, which nobody else has


class Hosts(Protocol):
    """Where clients are visited and evaluated, and where what stays with them stays."""

    def visited(self, round: "ClientRound") -> Iterator[tuple[int, "Visited", "Sent | None"]]:
        """What the clients of a round bring, in the order of their ids, and what each was sent, if that differs.

        A memory is never among it.
        """

    def found(self, scorer: "Scorer", round: int, asked: Sequence[tuple[str, int]]) -> list["Found"]:
        """What evaluations found, each named by what is looked at and whose it is."""

    def adopt(self, round: int, clients: Sequence[int]) -> Names:
        """The visits of these clients count: the next ones go on from them. What each keeps from now on."""

    def kept(self) -> dict[str, Any]:
        """For a checkpoint: which visit of each client was the last that counts, and `names` of what it keeps."""

    def resume(self, kept: Mapping[str, Any]) -> Names:
        """Go on from there; what each client keeps."""
