"""`trainer.client_timeout`: a client trains in a forked process, which can be killed.

The parent reads its result without running code, as that of a remote host. Nothing but the result comes back.
"""

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from time import monotonic
from typing import Any, TypeVar

from fedlit.engine.live_module import client_failure
from fedlit.engine.plan import Interrupted
from fedlit.records.plain_values import from_bytes, to_bytes
from fedlit.records.round_record import LONGEST_REASON, Failure


def unusable(error: Exception) -> Failure:
    """Why an answer cannot be used."""
    problem = client_failure(error)
    return Failure(f"its answer cannot be used: {problem.reason}"[:LONGEST_REASON], problem.details)


Result = TypeVar("Result")
POLL = 0.2  # seconds between checks whether a child has ended or the run is to stop
PR_SET_PDEATHSIG = 1  # from prctl.h


def in_child(
    work: Callable[[], Result],
    timeout: float,
    should_stop: Callable[[], bool],
    pack: Callable[[Result], Any],
    unpack: Callable[[Any], Result],
) -> Result | Failure:
    """What `work` returns in a forked process, or why it returned nothing.

    The child is killed after `timeout` seconds, or when the run is to stop. `pack` turns a result into plain values;
    `unpack` validates them and turns them back.
    """
    context = multiprocessing.get_context("fork")
    receiving, sending = context.Pipe(duplex=False)
    child = context.Process(target=_work, args=(work, pack, sending))
    with warnings.catch_warnings():  # Python warns of threads; the child starts none of those that others hold locks of
        warnings.simplefilter("ignore", DeprecationWarning)
        child.start()
    sending.close()
    try:
        received = _receive(child, receiving, timeout, should_stop)
    finally:
        receiving.close()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid or 0, signal.SIGKILL)  # and what it has started
        child.kill()
        child.join()
    if isinstance(received, Failure):
        return received
    try:
        return unpack(from_bytes(received))
    except Exception as error:  # it may hold anything
        return unusable(error)


def _work(work: Callable[[], Result], pack: Callable[[Result], Any], sending: Connection) -> None:
    """Runs in the child."""
    os.setpgid(0, 0)  # what it starts itself is killed with it, and Ctrl-C is for its parent
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if sys.platform == "linux":  # die with the parent
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    sending.send_bytes(to_bytes(pack(work())))


def _receive(
    child: BaseProcess, receiving: Connection, timeout: float, should_stop: Callable[[], bool]
) -> bytes | Failure:
    """What a child sends, or why it sends nothing."""
    end = monotonic() + timeout
    while (left := end - monotonic()) > 0:
        if should_stop():
            raise Interrupted
        try:
            if receiving.poll(min(left, POLL)):
                return receiving.recv_bytes()
        except EOFError:  # it ends, and has sent nothing
            child.join(left)
            if child.exitcode is not None:
                return Failure(f"its process {ending(child.exitcode)}")
    return Failure(f"it took longer than `trainer.client_timeout`, {timeout:g} s, and was ended")


def ending(exit_code: int) -> str:
    """How a process ended that returned nothing.

    Example:
        >>> ending(-11)
        'was ended by SIGSEGV'
    """
    if exit_code >= 0:
        return f"ended by itself, with exit code {exit_code}"
    name = signal.Signals(-exit_code).name
    hint = " (perhaps there was no memory left)" if name == "SIGKILL" else ""
    return f"was ended by {name}{hint}"
