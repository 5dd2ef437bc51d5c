"""Letters by Flower's Grid: every client is a SuperNode, every letter a message, every answer its reply.

A host that is gone may come back: what it has not answered it is asked again, which is safe: a round that
it has trained is answered from its file. Who has not answered in time is left out of the round.
"""

import time
from collections.abc import Iterator, Mapping
from typing import Any

from flwr.app import Array, ArrayRecord, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

import fedlit
from fedlit.flower import wire
from fedlit.records.round_record import Failure

KINDS = {"join": "query", "train": "train", "evaluate": "evaluate"}  # what Flower calls them
GONE = (  # codes of what may be otherwise when it is asked again
    ErrorCode.MESSAGE_UNAVAILABLE,
    ErrorCode.REPLY_MESSAGE_UNAVAILABLE,
    ErrorCode.NODE_UNAVAILABLE,
    ErrorCode.CLIENT_APP_CRASHED,
)
MOST_TRIES = 5  # a host whose app dies of what it is asked would be asked for ever
PAUSE = 0.5  # seconds between looks for replies


def content_of(parts: Mapping[str, bytes]) -> RecordDict:
    """Bytes as a message's content: arrays, which Flower sends in pieces, whatever their size."""
    arrays = {name: Array(dtype="uint8", shape=(len(data),), stype="fedlit", data=data) for name, data in parts.items()}
    return RecordDict({"letter": ArrayRecord(arrays)})


def parts_of(message: Message) -> dict[str, bytes]:
    """And back."""
    return {name: array.data for name, array in message.content["letter"].items()}


class GridPost:
    """Carries letters to SuperNodes.

    Args:
        grid: Of a ServerApp.
        num_clients: That are to join.
        reply_timeout: Seconds until a client that does not answer is left out.
        join_timeout: Seconds until clients that have not joined are missed.
    """

    def __init__(self, grid: Grid, num_clients: int, reply_timeout: float, join_timeout: float) -> None:
        self.grid = grid
        self.num_clients = num_clients
        self.reply_timeout = reply_timeout
        self.join_timeout = join_timeout
        self.joined: dict[int, dict[str, Any]] = {}  # by client: what it said of itself
        self._nodes: dict[int, int] = {}  # by client: its node
        self._refusals: dict[int, str] = {}  # by node: why it is no client of ours

    def wait_for_all(self) -> dict[int, dict[str, Any]]:
        """Let every client join; what each says of itself."""
        deadline = time.monotonic() + self.join_timeout
        while len(self._nodes) < self.num_clients:
            self._meet_new_nodes(deadline)
            if len(self._nodes) < self.num_clients:
                if time.monotonic() > deadline:
                    raise ValueError(self._missed())
                time.sleep(PAUSE)
        return self.joined

    def _missed(self) -> str:
        missing = [k for k in range(self.num_clients) if k not in self._nodes]
        problem = f"Clients {missing} have not joined within {self.join_timeout:g} s"
        refusals = sorted(set(self._refusals.values()))
        return f"{problem}{'; a node was refused: ' if refusals else ''}{'; '.join(refusals)}."

    def _meet_new_nodes(self, deadline: float) -> None:
        """Ask new nodes which client they are."""
        known = {*self._nodes.values(), *self._refusals}
        new = [node for node in self.grid.get_node_ids() if node not in known]
        letter = wire.Letter(wire.pack({}), wire.pack({"protocol": wire.PROTOCOL}))
        for node, reply in self._exchange("join", dict.fromkeys(new, letter), deadline):
            if reply is None:
                continue
            if isinstance(reply, Failure):
                self._refusals[node] = reply.reason
            else:
                self._welcome(node, reply)

    def _welcome(self, node: int, reply: bytes) -> None:
        try:
            joined = wire.unpack(reply, most=2**24)
            if joined.get("failed"):
                raise ValueError(str(joined["reason"]))
            if joined["fedlit"] != fedlit.__version__:
                raise ValueError(f"it has fedlit {joined['fedlit']}, the server {fedlit.__version__}")
            client = int(joined["client"])
            if joined["num_clients"] != self.num_clients or not 0 <= client < self.num_clients:
                raise ValueError(f"it is client {client} of {joined['num_clients']}, of {self.num_clients} here")
        except Exception as error:  # it may hold anything
            self._refusals[node] = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        before = self._nodes.get(client)
        if before is not None and before in set(self.grid.get_node_ids()):
            self._refusals[node] = f"two nodes say that they are client {client}"
            return
        self._nodes[client] = node
        self.joined[client] = joined

    def ask(self, what: str, letters: Mapping[int, wire.Letter]) -> Iterator[tuple[int, bytes | Failure]]:
        """The answer of each client, or why there is none, as they come; a host that has come back is asked again."""
        left = dict(letters)
        tries = dict.fromkeys(letters, 0)
        deadline = time.monotonic() + self.reply_timeout
        while left:
            nodes = {self._nodes[k]: k for k in left}
            letters_of = {node: left[k] for node, k in nodes.items()}
            for node, reply in self._exchange(what, letters_of, deadline):
                k = nodes[node]
                tries[k] += 1
                if reply is None and tries[k] < MOST_TRIES:
                    continue
                del left[k]
                yield k, reply or Failure(f"its host was lost {MOST_TRIES} times while it was asked.")
            if left and time.monotonic() > deadline:
                break
            if left:
                self._meet_new_nodes(deadline)
                time.sleep(PAUSE)
        for k in left:
            yield k, Failure(f"its host has not answered within {self.reply_timeout:g} s.")

    def _exchange(self, what: str, letters: Mapping[int, wire.Letter], deadline: float) -> Iterator[tuple[int, Any]]:
        """What nodes reply to one message each, as it comes; None of a node that was lost meanwhile."""
        active = self._activations()
        there = [node for node in letters if node in active]
        under_way = dict(zip(self._push(what, {node: letters[node] for node in there}), there, strict=True))
        while under_way and time.monotonic() <= deadline:
            for message in self.grid.pull_messages(list(under_way)):
                node = under_way.pop(message.metadata.reply_to_message_id)
                yield node, _reply(message)
            if under_way:
                time.sleep(PAUSE)
                now = self._activations()
                back = [key for key, node in under_way.items() if now.get(node) != active[node]]
                for key in back:  # it was started anew, and has forgotten what it was asked
                    yield under_way.pop(key), None

    def _activations(self) -> dict[int, str]:
        """When each node was started."""
        return {node.node_id: node.last_activated_at for node in self.grid.get_nodes()}

    def _push(self, what: str, letters: Mapping[int, wire.Letter]) -> list[str]:
        messages = []
        for node, letter in letters.items():
            content = content_of(letter._asdict())
            messages.append(Message(content, node, KINDS[what], ttl=self.reply_timeout))
        return list(self.grid.push_messages(messages)) if messages else []


def _reply(message: Message) -> bytes | Failure | None:
    """What a message says; None if its node was lost."""
    if not message.has_error():
        return parts_of(message)["answer"]
    error = message.error
    if error.code in GONE:
        return None
    lines = (error.reason or "its app could not be run").strip().splitlines()
    return Failure(f"its host failed ({error.code}): {lines[-1]}")
