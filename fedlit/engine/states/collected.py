"""Uploads that the server keeps as they came, for a stage of its own: on several processes, each at a home."""

from collections.abc import Iterator, Mapping

from fedlit.aggregation import State
from fedlit.engine.plan import Memory
from fedlit.engine.states.client_store import Memories, Store


class Collected(Mapping[int, State]):
    """By client id; of those that other processes have, the names are known.

    Args:
        store: Of what stays with clients.

    Attributes:
        is_with_server: Whether the process in which the server trains has a copy of all.
    """

    def __init__(self, store: Store) -> None:
        self.is_with_server = False
        self._memories = Memories(store)

    def __getitem__(self, client: int) -> State:
        return self._memories[client].state

    def __iter__(self) -> Iterator[int]:
        return iter(sorted(self._memories.everybody))

    def __len__(self) -> int:
        return len(self._memories.everybody)

    def __contains__(self, client: object) -> bool:
        return client in self._memories.everybody

    def here(self) -> list[int]:
        """Clients whose uploads this process has, be it as a copy."""
        return sorted(self._memories)

    def names(self, client: int) -> tuple[str, ...]:
        """The names in an upload, wherever it is; none if there is none."""
        return self._memories.names(client)

    def number(self, client: int) -> int:
        """Of an upload in the store; another upload has another."""
        return self._memories.number(client)

    def peek(self, client: int) -> State:
        """An upload, to be looked at once."""
        return self._memories.peek(client).state

    @property
    def num_bytes(self) -> int:
        """Of all that is here."""
        return self._memories.num_bytes

    def add(self, client: int, state: State) -> None:
        """Keep an upload."""
        self._memories[client] = Memory(state)

    def know(self, names: Mapping[int, tuple[str, ...]]) -> None:
        """Note the names of uploads that are elsewhere."""
        self._memories.know(names)

    def adopt(self, others: "Collected") -> None:
        """Take over what another of the same store holds or knows."""
        self._memories.adopt(others._memories)
        self.is_with_server = self.is_with_server and not len(others)

    def clear(self) -> None:
        """Forget all."""
        for client in list(self):
            self._memories.forget(client)
