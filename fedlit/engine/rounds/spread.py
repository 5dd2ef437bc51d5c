"""The uploads of a round on several processes: each stays where its client was visited."""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain

from lightning.fabric import Fabric

from fedlit.aggregation import NOTHING, Spread, State, Upload, weighted_mean
from fedlit.aggregation.partial_sums import PartialSum, Settled, is_summable, settled
from fedlit.engine.cluster.processes import added_up, broadcast, largest_of
from fedlit.engine.rounds.held import HeldUploads

Uploads = Iterator[Upload] | Spread


class SpreadUploads(Spread):
    """Uploads of a round; whatever is asked of them must be asked by every process.

    Args:
        fabric: Launched.
        held: Those of this process.
        holders: The process that has each client's, in client order.
        weights: Of every client.
        like: Of the names, shapes and dtypes of an upload; None if they are not all alike.
        hidden: Prefixes of names that are left out.
    """

    def __init__(
        self,
        fabric: Fabric,
        held: HeldUploads,
        holders: Mapping[int, int],
        weights: Mapping[int, float],
        like: State | None,
        hidden: tuple[str, ...] = (),
    ) -> None:
        self.fabric = fabric
        self.held = held
        self.holders = holders
        self.weights = weights
        self.like = None if like is None else _shown(like, hidden)
        self.hidden = hidden

    def __len__(self) -> int:
        return len(self.holders)

    def __iter__(self) -> Iterator[Upload]:
        for k, holder in self.holders.items():
            own = None if holder != self.fabric.global_rank else self._own(k).state
            state = broadcast(self.fabric, own, holder)
            yield Upload(k, state, self.weights[k])

    def without(self, prefixes: tuple[str, ...]) -> "SpreadUploads":
        hidden = (*self.hidden, *prefixes)
        return SpreadUploads(self.fabric, self.held, self.holders, self.weights, self.like, hidden)

    def mean(self) -> State:
        """By partial sums, and by the values themselves where those leave it open (see `aggregation.partial_sums`)."""
        if not self.holders:
            raise ValueError(NOTHING)
        if self.like is None or not is_summable(self.like):
            return weighted_mean(iter(self))
        weights = [self.weights[k] for k in self.holders]
        part = PartialSum.of_nothing(self.like)
        for k in self._here():
            part.add(self._own(k), unit=weights[0])
        summed = PartialSum(
            self.like,
            added_up(self.fabric, part.sums),
            largest_of(self.fabric, part.exponents),
            largest_of(self.fabric, part.largest),
        )
        found = settled(summed, weights, self.fabric.world_size)
        found.open = broadcast(self.fabric, found.open)  # all must ask for the same
        return found.completed(() if found.is_complete else self._asked(found))

    def _asked(self, found: Settled) -> Iterator[Upload]:
        """What is open of every upload, in client order."""
        own = {k: found.asked_for(self._own(k)).state for k in self._here()}
        told: dict[int, State] = {}
        for source in sorted(set(self.holders.values())):
            told |= broadcast(self.fabric, own, source)
        for k in self.holders:
            yield Upload(k, told[k], self.weights[k])

    def _here(self) -> list[int]:
        return [k for k, holder in self.holders.items() if holder == self.fabric.global_rank]

    def _own(self, k: int) -> Upload:
        upload = self.held[k]
        return Upload(k, _shown(upload.state, self.hidden), upload.weight)


def _shown(state: State, hidden: tuple[str, ...]) -> State:
    return {name: tensor for name, tensor in state.items() if not name.startswith(hidden)}


def begun(uploads: Uploads) -> Iterable[Upload] | None:
    """Uploads of which the first has come; None if there is none."""
    if isinstance(uploads, Spread):
        return uploads if len(uploads) else None
    first = next(uploads, None)
    return None if first is None else chain([first], uploads)


def exhaust(uploads: Iterator[Upload]) -> None:
    """Let all come that are left."""
    deque(uploads, maxlen=0)
