"""How the processes of runs begin: new ones that import everything, or forks of one that has done so already.

Imports take seconds, and a short run hardly longer. A fork is as good as a new process where nothing but modules is
shared, and where no accelerator is near: its driver does not outlive a fork.
"""

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import NoReturn, Protocol

from fedlit.own_modules import INSTALLED

PYTHON = (sys.executable, "-P", "-m")  # runs a module; without `-P`, one in the current folder would come first
ROOT = Path(__file__).parents[2]  # where `fedlit` lies
FEDLIT = "fedlit"  # the module that is run
IMPORTED = "fedlit.cli.app"  # by the process that is forked
MESSAGE = 2**20  # bytes at most
PR_SET_PDEATHSIG = 1  # of Linux' prctl


class Process(Protocol):
    """Of a run, as `subprocess.Popen` has it."""

    pid: int

    def poll(self) -> int | None:
        """The exit code (below 0: the signal), or None as long as it lives."""

    def terminate(self) -> None:
        """Ask it to end."""


class NewProcesses:
    """Each run is a Python of its own.

    Args:
        module: That is run.
    """

    def __init__(self, module: str = FEDLIT) -> None:
        self.module = module

    def start(self, arguments: list[str], log: int, claim: int) -> Process:
        """A process with the arguments, which prints into a file and holds a claim as long as it lives."""
        return subprocess.Popen(
            [*PYTHON, self.module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment(),
            start_new_session=True,  # Ctrl-C reaches us alone, and we pass it on
            pass_fds=(claim,),
            preexec_fn=end_with_parent,
        )

    def close(self) -> None:
        """There is nothing to end."""


class Nursery:
    """Each run is a fork of one process that has imported fedlit (`fedlit.studies.nursery`) and does nothing else.

    Args:
        module: That is run.
        imported: What is imported once for all.
    """

    def __init__(self, module: str = FEDLIT, imported: str = IMPORTED) -> None:
        self.module = module
        self.imported = imported
        self.children: dict[int, Child] = {}
        self.channel: socket.socket | None = None
        self.server: subprocess.Popen | None = None

    def start(self, arguments: list[str], log: int, claim: int) -> Process:
        """A process with the arguments, which prints into a file and holds a claim as long as it lives.

        Raises:
            ChildProcessError: The process that is forked has died, and so has the one that took its place.
        """
        with contextlib.suppress(ChildProcessError):
            return self._forked(arguments, log, claim)
        return self._forked(arguments, log, claim)  # by another one

    def _forked(self, arguments: list[str], log: int, claim: int) -> "Child":
        if self.channel is None:
            self._open()
        assert self.channel is not None
        try:
            socket.send_fds(self.channel, [json.dumps([self.module, *arguments]).encode()], [log, claim])
        except ConnectionError as error:
            self._lose(error)
        while True:
            told = self._hear()
            if "born" in told:
                child = Child(told["born"], self)
                self.children[child.pid] = child
                return child

    def look(self) -> None:
        """Take note of whoever has ended."""
        while self.channel is not None and self._has_news():
            self._hear()

    def close(self) -> None:
        """End the process that is forked; runs that are left are asked to end, too."""
        if self.channel is None or self.server is None:
            return
        self.channel.close()
        self.channel = None
        self.server.wait()

    def _open(self) -> None:
        self.channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.server = subprocess.Popen(
            [*PYTHON, "fedlit.studies.nursery", str(theirs.fileno()), self.imported],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            env=environment(),
            start_new_session=True,
            pass_fds=(theirs.fileno(),),
        )
        theirs.close()

    def _has_news(self) -> bool:
        assert self.channel is not None
        try:
            self.channel.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except ConnectionError:  # its end is news, too
            return True
        return True

    def _hear(self) -> dict[str, int]:
        assert self.channel is not None
        try:
            message = self.channel.recv(MESSAGE)
        except ConnectionError as error:
            self._lose(error)
        if not message:
            self._lose()
        told = json.loads(message)
        if "ended" in told:
            self.children.pop(told["ended"]).code = told["code"]
        return told

    def _lose(self, error: ConnectionError | None = None) -> NoReturn:
        """Its children are asked to end by the system."""
        for child in self.children.values():
            child.code = -signal.SIGTERM
        self.children.clear()
        self.close()
        raise ChildProcessError("the process that runs are forked from has died") from error


class Child:
    """A fork; the nursery, whose child it is, hears when it ends.

    Attributes:
        pid: Of the process.
        code: With which it ended.
    """

    def __init__(self, pid: int, nursery: Nursery) -> None:
        self.pid = pid
        self.nursery = nursery
        self.code: int | None = None

    def poll(self) -> int | None:
        """The exit code (below 0: the signal), or None as long as it lives."""
        if self.code is None:
            with contextlib.suppress(ChildProcessError):  # then it has a code
                self.nursery.look()
        return self.code

    def terminate(self) -> None:
        """Ask it to end."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has just ended
                os.kill(self.pid, signal.SIGTERM)


def environment() -> dict[str, str]:
    """Of a run: one thread unless the user says otherwise, lines of one length in its log, and this fedlit."""
    found = {"OMP_NUM_THREADS": "1", **os.environ, "COLUMNS": "200"}
    if ROOT not in INSTALLED:  # a checkout may be in use without being installed
        places = [os.environ.get("PYTHONPATH", ""), str(ROOT)]
        found["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    return found


def end_with_parent() -> None:
    """Ask Linux for a SIGTERM when the parent dies; elsewhere a run that is left alone goes on to its end."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def births() -> NewProcesses | Nursery:
    """What this machine allows."""
    import torch

    if sys.platform == "linux" and not torch.accelerator.is_available():
        return Nursery()
    return NewProcesses()
