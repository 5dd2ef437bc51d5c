"""Uploads of a round, held until all have come, and who of them is out of all proportion to the others."""

from collections.abc import Iterator, Mapping
from math import sqrt
from statistics import median_low

import torch
from torch import Tensor

from fedlit.aggregation import Upload
from fedlit.engine.plan import Memory
from fedlit.engine.states.client_store import Store
from fedlit.engine.usage import UsageError


class HeldUploads:
    """Uploads in the order in which they came, as often as they are asked for.

    Args:
        store: Of what stays with clients: above its budget, uploads go to files as well.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.weights: dict[int, float] = {}
        self._numbers: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[Upload]:
        for client in list(self._numbers):
            yield self[client]

    def __getitem__(self, client: int) -> Upload:
        return Upload(client, self.store.get(self._numbers[client]).state, self.weights[client])

    def add(self, upload: Upload) -> None:
        """Hold one more."""
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
