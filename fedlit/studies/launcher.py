"""Starts the processes of runs: new ones that import everything, or forks of a fork server that has done so already.

Imports take seconds, and a short run hardly longer. A fork is as good as a new process where nothing but modules is
shared, and where no accelerator is in use: its driver does not outlive a fork.

The fork server is `python -m fedlit.studies.launcher CHANNEL MODULE`. It imports the module, and from then on only
forks when it is asked to and reports which forks have ended. It ends with the process that started it, and so do its
forks: the system sends each a SIGTERM, after which a run saves itself.
"""

import contextlib
import ctypes
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from runpy import run_module
from typing import NoReturn, Protocol

from fedlit.own_modules import INSTALLED

PYTHON = (sys.executable, "-P", "-m")  # runs a module; without `-P`, one in the current folder would come first
ROOT = Path(__file__).parents[2]  # where `fedlit` lies
FEDLIT = "fedlit"  # the module that is run
IMPORTED = "fedlit.cli.app"  # by the fork server
MESSAGE = 2**20  # bytes at most
PAUSE = 0.05  # seconds between two looks of the fork server at its forks
PR_SET_PDEATHSIG = 1  # of Linux' prctl


class Process(Protocol):
    """The process of a run, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """The exit code (below 0: the signal), or None as long as it runs."""

    def terminate(self) -> None:
        """Ask it to end."""


class NewProcesses:
    """Starts each run as a new Python process.

    Args:
        module: The module to run.
    """

    def __init__(self, module: str = FEDLIT) -> None:
        self.module = module

    def start(self, arguments: list[str], log: int, claim: int) -> Process:
        """Start a process that prints into a file and holds a claim as long as it runs."""
        return subprocess.Popen(
            [*PYTHON, self.module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=_environment(),
            start_new_session=True,  # Ctrl-C reaches us alone, and we pass it on
            pass_fds=(claim,),
            preexec_fn=_end_with_parent,
        )

    def close(self) -> None:
        """There is nothing to end."""


class ForkServer:
    """Starts each run as a fork of one process that has imported fedlit and does nothing else.

    Args:
        module: The module to run.
        imported: What is imported once for all.
    """

    def __init__(self, module: str = FEDLIT, imported: str = IMPORTED) -> None:
        self.module = module
        self.imported = imported
        self.forks: dict[int, Fork] = {}
        self.channel: socket.socket | None = None
        self.server: subprocess.Popen | None = None

    def start(self, arguments: list[str], log: int, claim: int) -> Process:
        """Start a process that prints into a file and holds a claim as long as it runs.

        Raises:
            ChildProcessError: The fork server has died, and so has the one that took its place.
        """
        with contextlib.suppress(ChildProcessError):
            return self._fork(arguments, log, claim)
        return self._fork(arguments, log, claim)  # by a new server

    def _fork(self, arguments: list[str], log: int, claim: int) -> "Fork":
        if self.channel is None:
            self._open()
        assert self.channel is not None
        try:
            socket.send_fds(self.channel, [json.dumps([self.module, *arguments]).encode()], [log, claim])
        except ConnectionError as error:
            self._give_up(error)
        while True:
            message = self._receive()
            if "started" in message:
                fork = Fork(message["started"], self)
                self.forks[fork.pid] = fork
                return fork

    def update(self) -> None:
        """Note the exit codes of forks that have ended."""
        while self.channel is not None and self._has_message():
            self._receive()

    def close(self) -> None:
        """End the fork server; runs that are left are asked to end, too."""
        if self.channel is None or self.server is None:
            return
        self.channel.close()
        self.channel = None
        self.server.wait()

    def _open(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server = subprocess.Popen(
            [*PYTHON, "fedlit.studies.launcher", str(theirs.fileno()), self.imported],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=_environment(),
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()

    def _has_message(self) -> bool:
        assert self.channel is not None
        try:
            self.channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:  # `_receive` handles the end of the server
            return True
        return True

    def _receive(self) -> dict[str, int]:
        assert self.channel is not None
        try:
            received = self.channel.recv(MESSAGE)
        except ConnectionError as error:
            self._give_up(error)
        if not received:
            self._give_up()
        message = json.loads(received)
        if "ended" in message:
            self.forks.pop(message["ended"]).code = message["code"]
        return message

    def _give_up(self, error: ConnectionError | None = None) -> NoReturn:
        """The server has died; the system asks its forks to end."""
        for fork in self.forks.values():
            fork.code = -signal.SIGTERM
        self.forks.clear()
        self.close()
        raise ChildProcessError("the fork server has died") from error


class Fork:
    """A process of the fork server, which reports its exit code.

    Attributes:
        pid: Of the process.
        code: Its exit code; None as long as it runs.
    """

    def __init__(self, pid: int, server: ForkServer) -> None:
        self.pid = pid
        self.server = server
        self.code: int | None = None

    def poll(self) -> int | None:
        """The exit code (below 0: the signal), or None as long as it runs."""
        if self.code is None:
            with contextlib.suppress(ChildProcessError):  # then it has a code
                self.server.update()
        return self.code

    def terminate(self) -> None:
        """Ask it to end."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signal.SIGTERM)


Launcher = NewProcesses | ForkServer


def launcher() -> Launcher:
    """The fastest way to start processes on this machine."""
    import torch

    if sys.platform == "linux" and not torch.accelerator.is_available():
        return ForkServer()
    return NewProcesses()


def _environment() -> dict[str, str]:
    """The environment of a run: one thread by default, log lines of one length, and this fedlit."""
    found = {"OMP_NUM_THREADS": "1", **os.environ, "COLUMNS": "200"}
    if ROOT not in INSTALLED:  # a checkout may be in use without being installed
        places = [os.environ.get("PYTHONPATH", ""), str(ROOT)]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    return found


def _end_with_parent() -> None:
    """Ask Linux for a SIGTERM when the parent dies; elsewhere a run that is left alone goes on to its end."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def serve() -> None:
    """The fork server: fork until the channel is closed."""
    channel = socket.socket(fileno=int(sys.argv[1]))
    import_module(sys.argv[2])
    gc.freeze()  # forks go on sharing what no collector walks through
    while True:
        _report_ended(channel)
        if not select.select([channel], [], [], PAUSE)[0]:
            continue
        message, files, _, _ = socket.recv_fds(channel, MESSAGE, 2)
        if not message:
            return
        pid = os.fork()
        if pid == 0:
            channel.close()
            return _run(json.loads(message), *files)
        for file in files:
            os.close(file)
        _send(channel, {"started": pid})


def _run(arguments: list[str], log: int, claim: int) -> None:
    """In a fork, run `python -m` with the arguments; the claim stays open until the process ends."""
    parent = os.getppid()
    _end_with_parent()
    if os.getppid() != parent:  # it died before we had asked
        raise SystemExit(128 + signal.SIGTERM)
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    module = arguments[0]
    sys.argv[1:] = arguments[1:]
    run_module(module, run_name="__main__", alter_sys=True)


def _report_ended(channel: socket.socket) -> None:
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:  # there are none
            return
        if pid == 0:
            return
        _send(channel, {"ended": pid, "code": os.waitstatus_to_exitcode(status)})


def _send(channel: socket.socket, message: dict[str, int]) -> None:
    with contextlib.suppress(BrokenPipeError):  # the caller has ended; the next read finds out
        channel.send(json.dumps(message).encode())


if __name__ == "__main__":
    serve()
