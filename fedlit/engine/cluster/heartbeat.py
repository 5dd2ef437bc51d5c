"""Which processes of a run are alive: a slow one is waited for, a dead one ends the run.

Every process gives a sign of life once a second, from a thread of its own, so also while it computes. Rank 0 hears them
all and answers. A connection that breaks without a goodbye is a process that has died. Silence is one that was stopped,
or a host that is gone; it is taken for dead after `trainer.process_timeout`. Silence is counted in beats of one's own:
a run that was stopped as a whole (Ctrl-Z, a laptop that slept) has missed nothing.

Lines to and from rank 0: `work`, `wait`, `bye` and `seen`; to it, `refused why` and `warned text`; from it, `end code`.
What concerns all is said by rank 0 alone. Nothing here needs torch.
"""

import atexit
import os
import secrets
import selectors
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from subprocess import Popen
from time import monotonic, sleep

from fedlit.engine.cluster.endings import LOST, MOMENT, REFUSED, end, ending, say_error
from fedlit.engine.cluster.peer import Peer

MINUTE = 60.0
LONGEST_NAME = 64  # of what says that it is a process of this run, in bytes


@dataclass(frozen=True)
class Loss:
    """Why the run cannot go on, and whether it is for this process to say so."""

    line: str
    is_ours_to_say: bool


class Heartbeat(threading.Thread):
    """The signs of life of this process, and what is known of the others.

    Args:
        rank: Of this process.
        world_size: How many there are.
        timeout: Seconds of silence after which a process is taken for dead.
        say: Shows a person a line while the run goes on.
        children: Processes that this one has started, by rank.
    """

    def __init__(
        self, rank: int, world_size: int, timeout: float, say: Callable[[str], None], children: Mapping[int, Popen]
    ) -> None:
        super().__init__(daemon=True, name="fedlit-heartbeat")
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.say = say
        self.children = children
        others = range(1, world_size) if rank == 0 else (0,)
        self.peers = {other: Peer() for other in others}
        self.loss: Loss | None = None
        self.lost = threading.Event()
        self.answered = threading.Event()  # the main thread knows of the loss and ends the run
        self.is_waiting = False
        self._own_wait = 0.0
        self._refusing = threading.Lock()
        self._warnings: set[str] = set()
        self._pid = os.getpid()
        self._selector = selectors.DefaultSelector()

    @property
    def interval(self) -> float:
        return min(1.0, self.timeout / 10)

    @property
    def patience(self) -> float:
        """Seconds until a person is told what is waited for, and again each time they have passed."""
        return min(MINUTE, self.timeout / 3)

    def listen(self, host: str) -> tuple[int, int]:
        """Let the others come in (rank 0): the port, and the number by which they are known."""
        door = socket.create_server((host, 0), backlog=self.world_size)
        door.setblocking(False)
        number = secrets.randbits(62)  # a stranger on this host must not end a run
        self._selector.register(door, selectors.EVENT_READ, lambda: self._let_in(door, number))
        return door.getsockname()[1], number

    def connect(self, host: str, port: int, number: int) -> None:
        """Come in at rank 0."""
        link = socket.create_connection((host, port), timeout=MINUTE)
        link.sendall(f"{number} {self.rank}\n".encode())
        self._follow(0, link)

    def run(self) -> None:
        next_beat = monotonic()
        while self.loss is None:
            for key, _ in self._selector.select(max(0.0, next_beat - monotonic())):
                key.data()
            if monotonic() >= next_beat:
                next_beat = monotonic() + self.interval
                self._beat()
        if not self.answered.wait(min(MINUTE, self.timeout)):  # the main thread is stuck, maybe in a user's code
            if self.loss.is_ours_to_say:
                say_error(self.loss.line)
            end(LOST)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within, this process waits for others."""
        self.is_waiting = True
        try:
            yield
        finally:
            self.is_waiting = False

    def refuse(self, why: str) -> bool:
        """End the run on all processes, because of what the user gave; whether it is for this process to say so."""
        if self.rank == 0:
            is_first = self._refusing.acquire(blocking=False)
            self._tell_all(f"end {REFUSED}")
            sleep(0.1)  # let it arrive
            return is_first
        self.peers[0].send(f"refused {why}")
        with self.waiting():  # rank 0 says it and tells our thread to end this process, or has found the same and left
            return not self.lost.wait(8 * MOMENT)

    def is_for_us_to_warn(self, text: str) -> bool:
        """Whether a warning is to be shown here: rank 0 shows those of all, each once."""
        line = " ".join(text.split())
        if self.rank > 0:
            self.peers[0].send(f"warned {line}")
            return False
        is_new = line not in self._warnings
        self._warnings.add(line)
        return is_new

    def is_echo(self) -> bool:
        """Whether an error of this process is one of rank 0's, too, which shows it."""
        return self.rank > 0 and self.lost.wait(2 * MOMENT)

    def leave(self) -> None:
        """At the end of the process: say goodbye, unless it ends by an error; that is for the others a death."""
        if os.getpid() != self._pid:
            return
        if self.answered.is_set():  # torch would wait for the lost process while it takes itself down
            end(LOST)
        if not hasattr(sys, "last_value"):
            self._tell_all("bye")
            self._await_farewells()

    def forget(self) -> None:
        """Close all links. In a forked process they would outlive us, and our death go unseen."""
        for peer in self.peers.values():
            if peer.link is not None:
                peer.link.close()
        self._selector.close()

    def _let_in(self, door: socket.socket, number: int) -> None:
        link, _ = door.accept()
        link.settimeout(MOMENT)
        heard = b""
        with suppress(OSError):
            while b"\n" not in heard and len(heard) < LONGEST_NAME:
                heard += link.recv(LONGEST_NAME) or b"\n"
        name, _, rest = heard.partition(b"\n")
        ranks = {f"{number} {rank}".encode(): rank for rank in self.peers}
        if name in ranks:
            self._follow(ranks[name], link)
            self._take_in(ranks[name], rest)
        else:
            link.close()

    def _follow(self, rank: int, link: socket.socket) -> None:
        link.setblocking(False)
        self.peers[rank].link = link
        self._selector.register(link, selectors.EVENT_READ, lambda: self._hear(rank))

    def _hear(self, rank: int) -> None:
        peer = self.peers[rank]
        assert peer.link is not None
        try:
            heard = peer.received()
        except BlockingIOError:
            return
        if not heard:
            self._selector.unregister(peer.link)
            peer.link = None
            if not peer.has_left:
                self._lose(rank, f"has died ({self._how(rank)})")
            return
        self._take_in(rank, heard)

    def _take_in(self, rank: int, heard: bytes) -> None:
        peer = self.peers[rank]
        peer.silence = 0.0
        *lines, peer.unread = (peer.unread + heard).split(b"\n")
        for line in lines:
            self._understand(rank, line.decode(errors="replace"))

    def _understand(self, rank: int, line: str) -> None:
        peer = self.peers[rank]
        word, _, rest = line.partition(" ")
        if word in ("wait", "work"):
            peer.is_waiting = word == "wait"
        elif word == "bye":
            peer.has_left = True
            peer.send("seen")
        elif word == "seen":
            peer.has_seen_us_off = True
        elif word == "warned":
            if self.is_for_us_to_warn(rest):
                sys.stderr.write(f"{rest}\n")
        elif word == "refused":
            self._pass_on(rest)
        elif word == "end" and int(rest) == REFUSED:
            end(REFUSED)
        elif word == "end":
            self.forget()
            self._set_loss("another process was lost, as rank 0 says", is_ours_to_say=False)

    def _beat(self) -> None:
        self._own_wait = self._own_wait + self.interval if self.is_waiting else 0.0
        self._tell_all("wait" if self.is_waiting else "work")
        for rank, peer in self.peers.items():
            peer.silence += self.interval
            peer.wait = peer.wait + self.interval if peer.is_waiting else 0.0
            self._judge(rank, peer)
        if self.rank == 0 and self.loss is None:
            self._say_who_is_waited_for()

    def _judge(self, rank: int, peer: Peer) -> None:
        child = self.children.get(rank)
        if peer.has_left:
            if self._own_wait > 5 * self.interval:
                self._lose(rank, "has ended before the others")
        elif child is not None and child.poll():
            self._lose(rank, f"has died ({self._how(rank)})")
        elif peer.silence > self.timeout:
            self._lose(rank, f"gave no sign of life for {self.timeout:g} s (`trainer.process_timeout`)")
        elif self._is_due(peer.silence) and self.rank < 2:  # one speaks for all
            self.say(f"no sign of rank {rank} for {peer.silence:.0f} s; it may be stopped")

    def _say_who_is_waited_for(self) -> None:
        waits = {0: self._own_wait, **{rank: peer.wait for rank, peer in self.peers.items()}}
        longest = max(waits.values())
        silent = {rank for rank, peer in self.peers.items() if peer.silence > self.patience}
        at_work = [rank for rank, wait in waits.items() if wait == 0 and rank not in silent]
        if self._is_due(longest) and at_work:
            ranks = ", ".join(map(str, at_work))
            self.say(f"waiting for rank {ranks}, which is alive and at work ({longest:.0f} s)")

    def _is_due(self, seconds: float) -> bool:
        """Whether a multiple of our patience has just passed."""
        return seconds // self.patience > max(0.0, seconds - self.interval) // self.patience

    def _lose(self, rank: int, how: str) -> None:
        if self.loss is not None:
            return
        line = f"rank {rank} of {self.world_size} {how}; the run goes on from its last checkpoint with --ckpt_path last"
        child = self.children.get(rank)
        if child is not None:
            child.kill()  # a stopped one would lie about for ever
        self._end_others(LOST)
        self._set_loss(line, is_ours_to_say=self.rank == min({0, 1} - {rank}))

    def _set_loss(self, line: str, is_ours_to_say: bool) -> None:
        self.loss = Loss(line, is_ours_to_say)
        self.lost.set()

    def _how(self, rank: int) -> str:
        child = self.children.get(rank)
        if child is None:
            return "its connection broke"
        return ending(child) or "its connection broke"

    def _pass_on(self, why: str) -> None:
        """Say for another why the run is refused, if we are not about to say it ourselves."""
        sleep(MOMENT)
        if self._refusing.acquire(blocking=False):
            say_error(why)
            self._end_others(REFUSED)
            end(REFUSED)

    def _end_others(self, code: int) -> None:
        """And wait a moment until they have heard it: what is on its way when a process ends may be lost with it."""
        self._tell_all(f"end {code}")
        deadline = monotonic() + MOMENT
        for peer in self.peers.values():
            while peer.link is not None and monotonic() < deadline:
                peer.link.settimeout(max(0.01, deadline - monotonic()))
                with suppress(TimeoutError):
                    if not peer.received():
                        break

    def _await_farewells(self) -> None:
        deadline = monotonic() + MOMENT
        for peer in self.peers.values():
            while peer.link is not None and not peer.has_seen_us_off and monotonic() < deadline:
                sleep(0.01)

    def _tell_all(self, line: str) -> None:
        for peer in self.peers.values():
            peer.send(line)


_current: Heartbeat | None = None


def current() -> Heartbeat | None:
    """The heartbeat of this process; None if it is the only one of its run."""
    return _current


def begin(heartbeat: Heartbeat) -> None:
    """From now on the process is known to be alive, until it ends."""
    global _current
    _current = heartbeat
    atexit.register(heartbeat.leave)
    os.register_at_fork(after_in_child=heartbeat.forget)
    heartbeat.start()
