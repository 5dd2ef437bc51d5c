"""Which ranks of a run are alive: a slow one is waited for, a dead one is named and ends the run.

Every rank counts in a torch.distributed store, from a thread of its own, so also while it computes. Rank 0 watches all
others, and they watch rank 0. A count that stands still for `trainer.process_timeout` is a rank that was stopped, or
whose host is gone. A child process that has died, a store that broke together with rank 0 and a rank that reports an
error are dead at once. Time is counted in ticks of one's own: a run that was stopped as a whole (Ctrl-Z, a laptop that
slept) has missed nothing.

Keys: `beat/r` is a count of rank r and its state, one of `STATES`; `end` is the exit code with which all are to end;
`refused` and `warned/...` count who has found the same, so that the first one says it.
"""

import atexit
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from subprocess import Popen, TimeoutExpired
from time import monotonic, sleep
from typing import TYPE_CHECKING, NoReturn

from fedlit.engine.plan import Interrupted

if TYPE_CHECKING:
    from torch.distributed import Store

LOST = 3  # exit code of a run that has lost a rank
REFUSED = 2  # of one whose input cannot be used
STATES = ("work", "wait", "broken", "left", "failed")  # broken: of a connection between processes
SUSPICIOUS = 3.0  # seconds of silence that are enough once a connection broke


class ProcessLost(Interrupted):
    """Another rank of the run is gone, so no round can be finished any more.

    Attributes:
        is_ours_to_say: Whether this rank reports it.
    """

    def __init__(self, line: str, is_ours_to_say: bool) -> None:
        super().__init__(line)
        self.is_ours_to_say = is_ours_to_say


@dataclass
class Peer:
    """The last sign of life of another rank, and the seconds since."""

    beat: str = ""
    state: str = "work"
    silence: float = 0.0


class Liveness:
    """Signs of life of this rank, and what it knows of the others.

    Args:
        store: Of this attempt of the run (`join_attempt`).
        rank: Of this process.
        world_size: Number of ranks.
        timeout: Seconds without a sign of life after which a rank is taken for dead.
        say: Shows a line while the run goes on.
        children: Processes that this one has started, by rank.
    """

    def __init__(
        self,
        store: "Store",
        rank: int,
        world_size: int,
        timeout: float,
        say: Callable[[str], None],
        children: Mapping[int, Popen],
    ) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.say = say
        self.children = children
        self.peers = {other: Peer() for other in (range(1, world_size) if rank == 0 else (0,))}
        self.loss: ProcessLost | None = None
        self.lost = threading.Event()
        self.answered = threading.Event()  # the main thread knows of the loss and ends the run
        self.has_met = False  # before, the main thread waits for others where it cannot answer
        self._activity = "work"
        self._ending = ""
        self._wait = 0.0  # seconds since we wait for others
        self._count = 0
        self._is_over = False
        self._is_refused = False
        self._exchanging = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._pid = os.getpid()

    @property
    def tick(self) -> float:
        return min(0.25, self.timeout / 10)

    def start(self) -> None:
        """Give signs of life until the process ends."""
        global _current
        _current = self
        atexit.register(self.leave)
        for loop in (self._talk, self._watch):  # the first blocks where the store's host is stopped
            thread = threading.Thread(target=loop, daemon=True, name="fedlit-liveness")
            self._threads.append(thread)
            thread.start()

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Within, this rank waits for others."""
        self._activity = "wait"
        try:
            yield
        finally:
            self._activity = "work"

    def check(self) -> None:
        """Raise `ProcessLost` if a rank is gone."""
        if self.loss is not None:
            self.answered.set()
            raise self.loss

    def report_broken(self) -> None:
        """A connection between processes broke, so a rank that is silent now is dead."""
        self._activity = "broken"

    def refuse(self) -> bool:
        """End all ranks because of invalid input; whether this one prints why."""
        self._is_refused = self._is_first("refused")
        return self._is_refused

    def is_for_us_to_warn(self, text: str) -> bool:
        """Whether no other rank has shown a warning."""
        return self._is_first(f"warned/{' '.join(text.split())}")

    def is_echo(self) -> bool:
        """Whether an error of this rank is one of rank 0's, too, which shows it."""
        return self.rank > 0 and self.lost.wait(2)

    def leave(self) -> None:
        """At the end of the process: report that it ends, or that it failed."""
        if os.getpid() != self._pid:
            return
        if self.answered.is_set():  # torch would wait for the lost rank while it takes itself down
            end(LOST)
        self._ending = "failed" if hasattr(sys, "last_value") else "left"
        with suppress(RuntimeError):
            if self._is_refused:
                self.store.set("end", str(REFUSED))
            self._exchange()
            if self.rank == 0 and self._ending == "left":
                self._await_others(10)
        self._is_over = True
        for thread in self._threads:  # one that Python ends inside a call of the store would abort the process
            thread.join(5)

    def _is_first(self, key: str) -> bool:
        try:
            return self.store.add(key, 1) == 1
        except RuntimeError:  # the store is gone with rank 0, whom it is left to
            return False

    def _talk(self) -> None:
        try:
            while not self._is_over:
                self._exchange()
                sleep(self.tick)
        except RuntimeError:  # the store is gone
            if self.rank == 0:
                self._set_loss("the launcher's store is gone", is_ours_to_say=True)
            elif self.peers[0].state != "left":
                self._lose(0, "has died (its connection broke)")

    def _exchange(self) -> None:
        """Write our beat and read those of others."""
        with self._exchanging:
            if self._is_over:
                return
            self._count += 1
            self.store.set(f"beat/{self.rank}", f"{self._count} {self._ending or self._activity}")
            if self._ending and self.rank > 0:  # our last word: rank 0 may go, and the store with it
                self._is_over = True
                return
            *beats, code = self.store.multi_get([*(f"beat/{other}" for other in self.peers), "end"])
            for peer, beat in zip(self.peers.values(), beats, strict=True):
                if beat.decode() != peer.beat:
                    peer.beat = beat.decode()
                    peer.state = peer.beat.split()[1]
                    peer.silence = 0.0
        if not self._ending:
            self._follow(code.decode())

    def _follow(self, code: str) -> None:
        """End as another rank says; where rank 0 leaves, let it know that we know."""
        if self.rank > 0 and (code or self.peers[0].state == "left"):
            self._ending = "left"
            self._exchange()
        if code == str(REFUSED):
            self._ending = "left"
            if self.rank == 0:
                self._await_others(2)
            end(REFUSED)
        if code == str(LOST) and self.rank > 0:
            self._set_loss("another rank was lost, as rank 0 says", is_ours_to_say=False)

    def _await_others(self, seconds: float) -> None:
        """Until all have read what is in the store, which may end with this process."""
        deadline = monotonic() + seconds
        while monotonic() < deadline and any(map(self._is_here, self.peers)):
            self._exchange()
            sleep(0.02)

    def _is_here(self, rank: int) -> bool:
        has_ended = rank in self.children and self.children[rank].poll() is not None
        return self.peers[rank].state not in ("left", "failed") and not has_ended

    def _watch(self) -> None:
        while self.loss is None:
            sleep(self.tick)
            if self._is_over:
                return
            self._wait = self._wait + self.tick if self._activity == "wait" else 0.0
            for rank, peer in self.peers.items():
                peer.silence += self.tick
                self._judge(rank, peer)
            at_work = [str(rank) for rank, peer in self.peers.items() if peer.state == "work"]
            if self.rank == 0 and at_work and self._is_due(self._wait):
                self.say(f"waiting for rank {', '.join(at_work)}, which is alive and at work ({self._wait:.0f} s)")
        if not self.answered.wait(min(60.0, self.timeout) * self.has_met):  # the main thread is stuck
            if self.loss.is_ours_to_say:
                say_error(str(self.loss))
            end(LOST)

    def _judge(self, rank: int, peer: Peer) -> None:
        child = self.children.get(rank)
        has_died = child is not None and bool(child.poll())
        if has_died:
            with suppress(RuntimeError):
                self._exchange()  # it may have said goodbye
        is_broken = "broken" in [self._activity, *(other.state for other in self.peers.values())]
        if peer.state == "left":
            if self._wait > min(5.0, self.timeout / 2) or is_broken:
                self._lose(rank, "has ended before the others")
        elif has_died or peer.state == "failed":
            self._lose(rank, f"has died ({ending(child)})")
        elif is_broken and peer.silence > min(self.timeout, SUSPICIOUS):
            self._lose(rank, "has died (its connection broke)")
        elif peer.silence > self.timeout:
            self._lose(rank, f"gave no sign of life for {self.timeout:g} s (`trainer.process_timeout`)")
        elif self._is_due(peer.silence) and self.rank < 2:  # one speaks for all
            self.say(f"no sign of rank {rank} for {peer.silence:.0f} s; it may be stopped")

    def _is_due(self, seconds: float) -> bool:
        """Whether it is time for a message, which comes once a minute or three times before the timeout."""
        interval = min(60.0, self.timeout / 3)
        return seconds // interval > max(0.0, seconds - self.tick) // interval

    def _lose(self, rank: int, how: str) -> None:
        if self.loss is not None:
            return
        self.peers[rank].state = "failed"
        if rank in self.children:
            self.children[rank].kill()  # a stopped one would stay for ever
        if self.rank == 0:
            with suppress(RuntimeError):
                self.store.set("end", str(LOST))
                self._await_others(2)
        line = f"rank {rank} of {self.world_size} {how}; the run goes on from its last checkpoint with --ckpt_path last"
        self._set_loss(line, is_ours_to_say=self.rank == min({0, 1} - {rank}))

    def _set_loss(self, line: str, is_ours_to_say: bool) -> None:
        self.loss = ProcessLost(line, is_ours_to_say)
        self.lost.set()


_current: Liveness | None = None


def current() -> Liveness | None:
    """The liveness of this process; None if it is the only one of its run."""
    return _current


def _forget() -> None:
    """A forked process must not use the store: its socket, and perhaps a lock, are its parent's."""
    global _current
    _current = None


os.register_at_fork(after_in_child=_forget)


def end_by_signal(children: Mapping[int, Popen], rank: int, number: int) -> NoReturn:
    """End this process and its children by a signal that came while ranks meet; rank 0 says so."""
    for child in children.values():
        child.kill()
    if rank == 0:
        sys.stderr.write(f"fedlit: stopped by {signal.Signals(number).name} before the first round\n")
    end(128 + number)


def end_if_one_died(children: Mapping[int, Popen]) -> None:
    """While ranks meet, a child that dies ends the run, which would wait for it in vain."""
    for rank, child in children.items():
        code = child.poll()
        if not code:
            continue
        if code > 128:
            end_by_signal(children, 0, code - 128)
        for other in children.values():
            other.kill()
        if code != REFUSED:  # else it has said why
            say_error(f"rank {rank} has died before the first round ({ending(child)})")
        end(REFUSED if code == REFUSED else LOST)


def ending(child: Popen | None) -> str:
    """How a process ended, waiting for it if need be."""
    try:
        code = None if child is None else child.wait(5)
    except TimeoutExpired:
        code = None
    if code is None:
        return "an error"
    return f"by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"


def say_error(line: str) -> None:
    sys.stderr.write(f"fedlit: error: {line}\n")


def end(code: int) -> NoReturn:
    """At once, from any thread: the main one may be stuck for ever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
