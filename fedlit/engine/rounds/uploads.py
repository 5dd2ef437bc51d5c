"""The uploads of a round until they are aggregated: added to a mean as they come, buffered, or sharded over processes.

The mean streams. What a method's own `aggregate`, a rule or a ratio needs together waits in a buffer, in memory and
above a budget on disk. On several processes an upload stays on the rank that trained its client.
"""

from collections.abc import Iterator, Mapping
from math import sqrt
from statistics import median_low

import torch
from lightning.fabric import Fabric
from torch import Tensor

from fedlit.aggregation import NOTHING, RunningMean, Spread, State, Upload, weighted_mean
from fedlit.aggregation.partial_sums import PartialSum, Settled, is_summable, settled
from fedlit.engine.cluster.processes import added_up, broadcast, largest_of
from fedlit.engine.plan import Memory
from fedlit.engine.states.client_store import Store
from fedlit.engine.usage import UsageError


class StreamedUploads(Spread):
    """Uploads of which only the mean is wanted.

    Args:
        names: Of what is averaged.
    """

    def __init__(self, names: list[str]) -> None:
        self.names = names
        self.weights: dict[int, float] = {}
        self._mean = RunningMean()

    def __len__(self) -> int:
        return len(self.weights)

    def __iter__(self) -> Iterator[Upload]:
        raise RuntimeError("These uploads were added up as they came; none was kept.")

    def add(self, upload: Upload) -> None:
        """Count one more."""
        self.weights[upload.client] = upload.weight
        self._mean.add(Upload(upload.client, {name: upload.state[name] for name in self.names}, upload.weight))

    def mean(self) -> State:
        return self._mean.mean()

    def without(self, prefixes: tuple[str, ...]) -> "StreamedUploads":
        return self

    def clear(self) -> None:
        """Forget all."""
        self.weights.clear()
        self._mean = RunningMean()


class BufferedUploads(Spread):
    """Uploads in the order in which they came, as often as they are asked for.

    Args:
        store: Of what stays with clients: above its budget, uploads go to files as well.
        hidden: Prefixes of names that are left out.
    """

    def __init__(self, store: Store, hidden: tuple[str, ...] = ()) -> None:
        self.store = store
        self.hidden = hidden
        self.weights: dict[int, float] = {}
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Upload]:
        for client in list(self._numbers):
            yield self[client]

    def __getitem__(self, client: int) -> Upload:
        state = self.store.get(self._numbers[client]).state
        return Upload(client, _without(state, self.hidden), self.weights[client])

    def __contains__(self, client: int) -> bool:
        return client in self._numbers

    def add(self, upload: Upload) -> None:
        """Keep one more."""
        self._numbers[upload.client] = self.store.put(Memory(upload.state))
        self.weights[upload.client] = upload.weight

    def drop(self, client: int) -> None:
        """Forget a client's, if it is here."""
        if client in self._numbers:
            self.store.drop(self._numbers.pop(client))
            del self.weights[client]

    def clear(self) -> None:
        """Forget all."""
        for client in list(self._numbers):
            self.drop(client)

    def mean(self) -> State:
        return weighted_mean(iter(self))

    def without(self, prefixes: tuple[str, ...]) -> "BufferedUploads":
        shown = BufferedUploads(self.store, (*self.hidden, *prefixes))
        shown.weights = self.weights
        shown._numbers = self._numbers
        return shown


class ShardedUploads(Spread):
    """Uploads of a round on several processes; whatever is asked of them must be asked by every process.

    Args:
        fabric: Launched.
        own: Those of this process.
        like: Of the names, shapes and dtypes of an upload; None if they are not all alike.
        hidden: Prefixes of names that are left out.
    """

    def __init__(self, fabric: Fabric, own: BufferedUploads, like: State | None, hidden: tuple[str, ...] = ()) -> None:
        self.fabric = fabric
        self.own = own
        self.like = None if like is None else _without(like, hidden)
        self.hidden = hidden
        self.ranks: dict[int, int] = {}
        self.weights: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self.ranks)

    def __iter__(self) -> Iterator[Upload]:
        for k, rank in self.ranks.items():
            own = None if rank != self.fabric.global_rank else self._own(k).state
            yield Upload(k, broadcast(self.fabric, own, rank), self.weights[k])

    def register(self, client: int, weight: float, rank: int) -> None:
        """Note that a rank has a client's upload; on that rank it is in `own`."""
        self.ranks[client] = rank
        self.weights[client] = weight

    def drop(self, client: int) -> None:
        """Forget a client's."""
        self.own.drop(client)
        self.ranks.pop(client, None)
        self.weights.pop(client, None)

    def clear(self) -> None:
        """Forget all."""
        self.own.clear()
        self.ranks.clear()
        self.weights.clear()

    def without(self, prefixes: tuple[str, ...]) -> "ShardedUploads":
        shown = ShardedUploads(self.fabric, self.own, self.like, (*self.hidden, *prefixes))
        shown.ranks = self.ranks
        shown.weights = self.weights
        return shown

    def mean(self) -> State:
        """By partial sums, and by the values themselves where those leave it open (see `aggregation.partial_sums`)."""
        if not self.ranks:
            raise ValueError(NOTHING)
        if self.like is None or not is_summable(self.like):
            return weighted_mean(iter(self))
        weights = [self.weights[k] for k in self.ranks]
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
        received: dict[int, State] = {}
        for source in sorted(set(self.ranks.values())):
            received |= broadcast(self.fabric, own, source)
        for k in self.ranks:
            yield Upload(k, received[k], self.weights[k])

    def _here(self) -> list[int]:
        return [k for k, rank in self.ranks.items() if rank == self.fabric.global_rank]

    def _own(self, k: int) -> Upload:
        upload = self.own[k]
        return Upload(k, _without(upload.state, self.hidden), upload.weight)


def _without(state: State, prefixes: tuple[str, ...]) -> State:
    if not prefixes:
        return state
    return {name: tensor for name, tensor in state.items() if not name.startswith(prefixes)}


def update_norm(state: Mapping[str, Tensor], before: Mapping[str, Tensor]) -> float:
    """How far a client has moved from what it received: the norm of all differences together.

    Example:
        >>> update_norm({"w": torch.tensor([3.0, 4.0])}, {"w": torch.zeros(2)})
        5.0
    """
    squares = 0.0
    for name, tensor in state.items():
        if tensor.shape != before[name].shape:
            raise UsageError(
                f"`trainer.max_norm_ratio` compares uploads with what the server holds, but {name!r} is "
                f"{tuple(before[name].shape)} there and {tuple(tensor.shape)} in an upload."
            )
        if tensor.is_floating_point():
            squares += float(torch.linalg.vector_norm(tensor.double() - before[name].double())) ** 2
    return sqrt(squares)


def out_of_proportion(values: Mapping[int, float], ratio: float | None, option: str, what: str) -> dict[int, str]:
    """The clients whose value is more than `ratio` times the median (of two in the middle, the smaller), and why.

    Where half of the clients have 0 there is no proportion to keep.

    Example:
        >>> out_of_proportion({0: 1.0, 1: 2.0, 2: 90.0}, 10, "max_weight_ratio", "weight")
        {2: 'weight 90 is 45 times the median of the round, 2; `trainer.max_weight_ratio` is 10'}
        >>> out_of_proportion({0: 0.0, 1: 0.0, 2: 90.0}, 10, "max_weight_ratio", "weight")
        {}
    """
    if ratio is None or not values:
        return {}
    middle = median_low(values.values())
    found = {}
    for client, value in values.items():
        if middle > 0 and value > ratio * middle:
            times = f"{value:.4g} is {value / middle:.4g} times the median of the round, {middle:.4g}"
            found[client] = f"{what} {times}; `trainer.{option}` is {ratio:g}"
    return found
