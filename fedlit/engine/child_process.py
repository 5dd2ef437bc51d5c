"""Runs a client's code in a forked process, which can be killed; its result is read without running code.

Where Python cannot be interrupted (a loop in C, a lock that nobody frees) nothing else ends a client that hangs, and a
process that dies of a segmentation fault or of memory takes none with it. What the code left behind in its process
beside the result, such as attributes of the method, is gone.
"""

import contextlib
import ctypes
import io
import os
import pickle
import select
import signal
import sys
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import IO, Any, NoReturn, TypeVar

import torch

from fedlit.engine.live_module import failed
from fedlit.engine.plan import Interrupted, is_plain
from fedlit.records.round_record import LONGEST_REASON, Failure


def unpack_plain(data: bytes, device: torch.device | str = "cpu", most: int | None = None) -> Any:
    """Tensors, numbers, strings and containers of them from bytes; what is too large or anything else is refused.

    Args:
        data: As it came.
        device: Where tensors go.
        most: Bytes that it may have; None is any number.
    """
    if most is not None and len(data) > most:
        raise ValueError(f"the message has {len(data)} bytes, at most {most} were expected.")
    value = torch.load(io.BytesIO(data), weights_only=True, map_location=device)
    if not is_plain(value):
        raise ValueError("the message holds what is neither tensor, number nor string.")
    return value


def unusable(error: Exception) -> Failure:
    """Why an answer cannot be used."""
    problem = failed(error)
    return Failure(f"its answer cannot be used: {problem.reason}"[:LONGEST_REASON], problem.details)


Result = TypeVar("Result")
END = os._exit  # as it is before anybody replaces it
DONE = b"d"
POLL = 0.2  # seconds between checks of a child whose own children hold its pipe, and for a request to stop
POLL_CLOSED = 0.005  # and of one whose pipe is closed
MOST_READ = 4096  # bytes; a child that works as it should writes one
PR_SET_PDEATHSIG = 1  # from prctl.h


def check_timeout(timeout: float | None, num_threads: int, device: torch.device) -> None:
    """Refuse what a forked process cannot go on with."""
    if timeout is None:
        return
    if not hasattr(os, "fork"):
        raise ValueError("`trainer.client_timeout` needs processes that can be forked, which this system has not.")
    if device.type != "cpu":
        raise ValueError(
            f"`trainer.client_timeout` forks processes and needs `trainer.accelerator: cpu`, got {device}."
        )
    if num_threads > 1:
        raise ValueError(
            f"`trainer.client_timeout` forks processes and needs `trainer.num_threads: 1`, got {num_threads}."
        )


def in_child(
    work: Callable[[], Result],
    timeout: float,
    should_stop: Callable[[], bool],
    pack: Callable[[Result], Any],
    unpack: Callable[[Any], Result],
) -> Result | Failure:
    """What `work` returns in a forked process, or why nothing came back.

    Args:
        work: Run in the child.
        timeout: Seconds until the child is killed.
        should_stop: Whether the run was asked to end: the child is killed then, too.
        pack: Turns a result into containers of tensors, numbers and strings.
        unpack: And back; validates them, and raises if they are not what `pack` returns.
    """
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as file:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()  # else the child would hold a copy of what is still to be written
        child = ForkedProcess(_fork())
        if child.pid == 0:
            os.close(reading)
            _work(work, pack, file, writing)
        os.close(writing)
        try:
            reason = _awaited(child, reading, timeout, should_stop)
        finally:
            os.close(reading)
            child.kill()
        if reason is not None:
            return Failure(reason)
        try:
            file.seek(0)
            return unpack(unpack_plain(file.read()))
        except pickle.UnpicklingError:
            return Failure("its result cannot be read without running code")
        except Exception as error:  # it may hold anything, or nothing
            return unusable(error)


@dataclass
class ForkedProcess:
    """A process that was forked; its status is known once it has ended."""

    pid: int
    status: int | None = None

    def has_ended(self, flags: int = os.WNOHANG) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, flags)
            if pid:
                self.status = status
        return self.status is not None

    def kill(self) -> None:
        """End it and what it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self.has_ended(flags=0)


def _fork() -> int:
    with warnings.catch_warnings():  # Python warns of threads; the child starts none of those that others hold locks of
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _work(work: Callable[[], Result], pack: Callable[[Result], Any], file: IO[bytes], writing: int) -> NoReturn:
    """What the child does until it exits."""
    status = 1
    try:
        os.setpgid(0, 0)  # what it starts itself is killed with it, and Ctrl-C is for its parent
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _die_with_parent()
        torch.save(pack(work()), file)
        file.flush()
        os.write(writing, DONE)
        status = 0
    finally:
        END(status)


def _die_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))


def _awaited(child: ForkedProcess, reading: int, timeout: float, should_stop: Callable[[], bool]) -> str | None:
    """Wait until a child is done, whatever it does to its end of the pipe; why it will not be, if so."""
    end = monotonic() + timeout
    pipes = [reading]
    while True:
        has_ended = child.has_ended()  # before the pipe is read: what it wrote last is there then
        left = max(end - monotonic(), 0.0)
        pause = POLL if pipes else POLL_CLOSED
        ready, _, _ = select.select(pipes, [], [], 0.0 if has_ended else min(left, pause))
        if should_stop():
            raise Interrupted
        if ready:
            written = os.read(reading, MOST_READ)
            if DONE in written:
                return None
            if not written:
                pipes = []  # nothing more can come; the child is about to end, or has closed it
        if has_ended:
            return _death(child.status or 0)
        if left == 0:
            return f"it took longer than `trainer.client_timeout`, {timeout:g} s, and was ended"


def _death(status: int) -> str:
    """How a process ended that returned nothing.

    Example:
        >>> _death(11)
        'its process died of SIGSEGV'
    """
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        with contextlib.suppress(ValueError):
            number = signal.Signals(number).name  # type: ignore[assignment]
        hint = " (perhaps there was no memory left)" if number == "SIGKILL" else ""
        return f"its process died of {number}{hint}"
    return f"its process ended by itself, with exit code {os.WEXITSTATUS(status)}"
