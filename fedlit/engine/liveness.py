"""The ranks of a run: how they find each other, and which are alive. A slow one is waited for, a dead one ends the run.

They meet in a store of rank 0, on loopback if there is one host, or of torchrun. torch.distributed has one timeout for
slow and dead ranks. Here collectives wait for ever, and every rank counts in the store, from a thread of its own, so
also while it computes. Rank 0 watches all others, and they watch rank 0: a count that stands still for
`trainer.process_timeout` is a rank that was stopped, or whose host is gone. Time is counted in ticks of one's own: a
run that was stopped as a whole (Ctrl-Z, a laptop that slept) has missed nothing.

Keys: `beat/r` is a count of rank r and its state, one of work, wait, broken, left and failed; `end` is the exit code
with which all are to end; others count the ranks that have found the same (`is_first`).
"""

import atexit
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from subprocess import Popen
from time import monotonic, sleep
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from lightning.fabric.plugins.environments import LightningEnvironment
from lightning.fabric.strategies import DDPStrategy
from torch import nn
from tqdm import tqdm

from fedlit.engine.child_process import ending
from fedlit.engine.plan import Interrupted
from fedlit.records.stop_signals import stop_signals

LOST = 3  # exit code of a run that has lost a rank
REFUSED = 2  # of one whose input cannot be used
A_SECOND = timedelta(seconds=1)
SUSPICIOUS = 3.0  # seconds of silence that are enough once a connection broke
LOOPBACK = "127.0.0.1"
FOR_EVER = timedelta(days=365)  # how long one rank waits for another is decided by `Liveness`
TO_MEET = timedelta(minutes=10)  # for all ranks to be there once one is


class ProcessLost(Interrupted):
    """Another rank of the run is gone, so no round can be finished any more; one rank reports it."""

    def __init__(self, line: str, reports: bool) -> None:
        super().__init__(line)
        self.reports = reports


@dataclass
class Peer:
    """The last sign of life of another rank, and the seconds since."""

    beat: str = ""
    state: str = "work"
    silence: float = 0.0

    @property
    def is_here(self) -> bool:
        return self.state not in ("left", "failed") and self.silence < SUSPICIOUS


class Liveness:
    """Signs of life of this rank, and what it knows of the others; `children` are processes that it has started."""

    def __init__(
        self, store: dist.Store, rank: int, world_size: int, timeout: float, children: Mapping[int, Popen]
    ) -> None:
        self.store = store
        self.rank = rank
        self.world_size = world_size
        self.timeout = timeout
        self.children = children
        self.peers = {other: Peer() for other in (range(1, world_size) if rank == 0 else (0,))}
        self._loss: ProcessLost | None = None
        self._lost = threading.Event()
        self._answered = threading.Event()  # the main thread knows of the loss and ends the run
        self._state = "work"
        self._wait = 0.0  # seconds since we wait for others
        self._count = 0
        self._is_over = False
        self._is_refused = False
        self._exchanging = threading.Lock()
        self._threads = [threading.Thread(target=loop, daemon=True) for loop in (self._talk, self._watch)]

    @property
    def tick(self) -> float:
        return min(0.25, self.timeout / 10)

    def start(self) -> None:
        """Give signs of life until the process ends."""
        global _current
        _current = self
        atexit.register(self.leave)
        for thread in self._threads:
            thread.start()

    def finish(self, work: dist.Work) -> None:
        """Wait for others: for ever if they are slow, and no longer if one is gone. Signals are handled meanwhile."""
        self._state = "wait"
        while not work.is_completed():
            self.check()
            with suppress(RuntimeError):  # a second has passed, or the work has failed
                work.wait(A_SECOND)
        try:
            work.wait()
        except RuntimeError as error:  # a connection broke: who is silent now is dead
            self._state = "broken"
            self._lost.wait(10)
            self.check()
            why = str(error).splitlines()[0]
            raise ProcessLost(f"the connection between processes broke: {why}", self.rank == 0) from error
        self._state = "work"

    def check(self) -> None:
        """Raise `ProcessLost` if a rank is gone."""
        if self._loss is not None:
            self._answered.set()
            raise self._loss

    def is_first(self, what: str) -> bool:
        """Whether no other rank has found the same, and shows it."""
        try:
            return self.store.add(what, 1) == 1
        except RuntimeError:  # the store is gone with rank 0, whom it is left to
            return False

    def refuse(self) -> bool:
        """End all ranks because of invalid input; whether this one prints why."""
        self._is_refused = self.is_first("refused")
        return self._is_refused

    def leave(self) -> None:
        """At the end of the process: the last sign of life says how it ended; rank 0, whose store it is, goes last."""
        if _current is not self:  # in a process that was forked
            return
        self._state = "failed" if hasattr(sys, "last_value") else "left"
        if self.rank == 0 or self.peers[0].state != "failed":
            with suppress(RuntimeError):
                if self._is_refused:
                    self.store.set("end", str(REFUSED))
                self._exchange()
                deadline = monotonic() + 10
                while self.rank == 0 and monotonic() < deadline and any(peer.is_here for peer in self.peers.values()):
                    sleep(0.02)
                    self._exchange()
        if self._answered.is_set():  # torch would wait for the lost rank while it takes itself down
            end(LOST)
        self._is_over = True
        for thread in self._threads:  # one that Python ends inside a call of the store would abort the process
            thread.join(5)

    def _talk(self) -> None:
        """Blocks where the host of the store is stopped."""
        try:
            while not self._is_over:
                self._exchange()
                sleep(self.tick)
        except RuntimeError:  # the store is gone
            if self.rank == 0:
                self._set_loss("the launcher's store is gone", reports=True)
            elif self.peers[0].state != "left":
                self._lose(0, "has died (its connection broke)")

    def _exchange(self) -> None:
        """Write our beat and read those of others."""
        with self._exchanging:
            self._count += 1
            self.store.set(f"beat/{self.rank}", f"{self._count} {self._state}")
            *beats, code = self.store.multi_get([*(f"beat/{other}" for other in self.peers), "end"])
            for peer, beat in zip(self.peers.values(), beats, strict=True):
                if beat.decode() != peer.beat:
                    peer.beat = beat.decode()
                    peer.state = peer.beat.split()[1]
                    peer.silence = 0.0
        if code == b"2" and not self._is_refused:
            sleep(2 * self.tick)  # the store may end with this process: others are to read it, too
            end(REFUSED)
        if code == b"3" and self.rank > 0:
            self._set_loss("another rank was lost, as rank 0 says", reports=False)

    def _watch(self) -> None:
        while self._loss is None:
            sleep(self.tick)
            if self._is_over:
                return
            self._wait = self._wait + self.tick if self._state == "wait" else 0.0
            for rank, peer in self.peers.items():
                peer.silence += self.tick
                how = self._how_lost(rank, peer)
                if how is not None:
                    self._lose(rank, how)
            self._report_waiting()
        if not self._answered.wait(min(60.0, self.timeout)):  # the main thread is stuck
            if self._loss.reports:
                sys.stderr.write(f"fedlit: error: {self._loss}\n")
            end(LOST)

    def _how_lost(self, rank: int, peer: Peer) -> str | None:
        code = self.children[rank].poll() if rank in self.children else None
        if code:
            with suppress(RuntimeError):
                self._exchange()  # it may have said goodbye
        is_broken = "broken" in [self._state, *(other.state for other in self.peers.values())]
        if peer.state == "left":
            is_missed = is_broken or self._wait > min(5.0, self.timeout / 2)
            return "has ended before the others" if is_missed else None
        if code or peer.state == "failed":
            return f"has died: it {ending(code)}" if code else "has died (an error)"
        if is_broken and peer.silence > min(self.timeout, SUSPICIOUS):
            return "has died (its connection broke)"
        if peer.silence > self.timeout:
            return f"gave no sign of life for {self.timeout:g} s (`trainer.process_timeout`)"
        return None

    def _report_waiting(self) -> None:
        """On rank 0, once a minute, or three times before the timeout."""
        interval = min(60.0, self.timeout / 3)
        if self.rank > 0 or self._wait % interval >= self.tick or self._wait < interval:
            return
        for rank, peer in self.peers.items():
            if peer.state == "work":
                how = "is alive and at work" if peer.is_here else f"gave no sign of life for {peer.silence:.0f} s"
                tqdm.write(f"fedlit: waiting for rank {rank}, which {how} ({self._wait:.0f} s)", file=sys.stderr)

    def _lose(self, rank: int, how: str) -> None:
        self.peers[rank].state = "failed"
        if rank in self.children:
            self.children[rank].kill()  # a stopped one would stay for ever
        if self.rank == 0:
            with suppress(RuntimeError):
                self.store.set("end", str(LOST))
        line = f"rank {rank} of {self.world_size} {how}; the run goes on from its last checkpoint with --ckpt_path last"
        self._set_loss(line, reports=self.rank == min({0, 1} - {rank}))

    def _set_loss(self, line: str, reports: bool) -> None:
        if self._loss is None:
            self._loss = ProcessLost(line, reports)
            self._lost.set()


_current: Liveness | None = None


def current() -> Liveness | None:
    """The liveness of this process; None if it is the only one of its run."""
    return _current


def _forget() -> None:
    """A forked process must not use the store: its socket, and perhaps a lock, are its parent's."""
    global _current
    _current = None


os.register_at_fork(after_in_child=_forget)


def end(code: int) -> NoReturn:
    """At once, from any thread: the main one may be stuck for ever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)


class ClientParallelStrategy(DDPStrategy):
    """Processes that share no module: DDP would average gradients of clients, and forbid different networks.

    Processes that share a device, for which `devices` are given, use gloo: NCCL needs a device for each.
    """

    def __init__(self, process_timeout: float, devices: list[torch.device] | None = None) -> None:
        backend = None if devices is None else "gloo"
        super().__init__(parallel_devices=devices, process_group_backend=backend, timeout=FOR_EVER)
        self.process_timeout = process_timeout
        self.children: dict[int, Popen] = {}  # processes that this one has started, by rank
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of children: a lost store is reported in one line

    def setup_module(self, module: nn.Module) -> nn.Module:  # type: ignore[override]  # not wrapped, on purpose
        return module

    def setup_environment(self) -> None:
        alive = current()
        if not dist.is_initialized():
            self._meet()
        elif alive is not None:  # a second federation of a script
            alive.timeout = self.process_timeout
        super().setup_environment()

    def end_children(self) -> None:
        """Kill children that have not joined."""
        for child in [*getattr(self.launcher, "procs", []), *self.children.values()]:
            child.kill()

    def _meet(self) -> None:
        assert self.cluster_environment is not None
        assert self.accelerator is not None
        self._set_world_ranks()
        rank, world_size = self.global_rank, self.world_size
        started = getattr(self.launcher, "procs", [])
        self.children = dict(enumerate(started, start=rank + 1))
        started.clear()  # else Lightning's observer would kill this process for theirs
        with stop_signals(self._end_by_signal):
            try:
                attempt = self._attempt(self._store(rank, world_size), rank, world_size)
            except dist.DistError as error:
                raise ProcessLost("rank 0 has died before the first round", rank == 1) from error
            Liveness(attempt, rank, world_size, self.process_timeout, self.children).start()
            self.accelerator.setup_device(self.root_device)
            backend = self.process_group_backend or ("gloo" if self.root_device.type == "cpu" else "nccl")
            device = None if backend == "gloo" else self.root_device
            options: dict[str, Any] = {"rank": rank, "world_size": world_size, "timeout": FOR_EVER}
            dist.init_process_group(backend, store=attempt, device_id=device, **options)

    def _store(self, rank: int, world_size: int) -> dist.Store:
        """The store of rank 0, on loopback if there is one host; or of torchrun."""
        environment = self.cluster_environment
        assert environment is not None
        host = environment.main_address
        port = environment.main_port
        is_alone = self.num_nodes == 1 and type(environment) is LightningEnvironment  # not torchrun's, not SLURM's
        is_server = rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        listening = None
        if is_alone and host in (LOOPBACK, "localhost"):
            host = LOOPBACK
            for name in {"lo", "lo0"}.intersection(name for _, name in socket.if_nameindex()):  # Linux, macOS
                os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
            if is_server:
                listening = socket.create_server((host, port), backlog=world_size).detach()
        options: dict[str, Any] = {"timeout": TO_MEET, "wait_for_workers": False, "master_listen_fd": listening}
        return dist.TCPStore(host, port, world_size, is_server, **options)

    def _attempt(self, store: dist.Store, rank: int, world_size: int) -> dist.Store:
        """A part of the store for this attempt of the run alone; on rank 0, when all ranks have joined it.

        torchrun keeps its store over restarts, with addresses of the dead, and every host counts its own restarts. So
        each rank asks with a random word, and rank 0 answers with the random name of the attempt until it is there.
        """
        if rank > 0:
            word = secrets.token_hex(8)
            store.set(f"asks/{rank}", word)
            attempt = dist.PrefixStore(store.get(f"answer/{word}").decode(), store)
            attempt.set(f"beat/{rank}", "0 work")
            return attempt
        name = f"attempt-{secrets.token_hex(8)}"
        attempt = dist.PrefixStore(name, store)
        attempt.set("beat/0", "0 work")
        attempt.set("end", "")
        missing = [*range(1, world_size)]
        deadline = monotonic() + TO_MEET.total_seconds()
        while missing:
            for other in missing:
                if store.check([f"asks/{other}"]):  # perhaps of an attempt before: nobody reads the answer
                    store.set(f"answer/{store.get(f'asks/{other}').decode()}", name)
            missing = [other for other in missing if not attempt.check([f"beat/{other}"])]
            self._check_children()
            if missing and monotonic() > deadline:
                ranks = ", ".join(map(str, missing))
                raise TimeoutError(f"rank {ranks} did not come within {TO_MEET.total_seconds():g} s")
            sleep(0.02)
        return attempt

    def _check_children(self) -> None:
        """A child that died would be waited for in vain."""
        for rank, child in self.children.items():
            code = child.poll()
            if not code:
                continue
            if code == REFUSED:  # it has said why
                raise SystemExit(code)
            if code > 128:
                self._end_by_signal(code - 128)
            raise ProcessLost(f"rank {rank} has died before the first round: it {ending(code)}", True)

    def _end_by_signal(self, number: int) -> NoReturn:
        """End this process and its children by a signal that came while ranks meet; rank 0 says so."""
        self.end_children()
        if self.global_rank == 0:
            sys.stderr.write(f"fedlit: stopped by {signal.Signals(number).name} before the first round\n")
        end(128 + number)
