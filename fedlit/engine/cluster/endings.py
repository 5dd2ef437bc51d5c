"""How processes end: exit codes and last lines, and a child that dies before all have met. Nothing here needs torch."""

import os
import signal
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from subprocess import Popen, TimeoutExpired
from typing import NoReturn

LOST = 3  # exit code of a run that has lost a process
REFUSED = 2  # of one that was given what it cannot use
MOMENT = 1.0  # seconds for what is on its way: an exit code, a line of our own


@contextmanager
def all_are_born(children: Mapping[int, Popen]) -> Iterator[None]:
    """Within, processes meet for the first time: a child that dies before ends the run, which would wait for ever."""
    have_met = threading.Event()

    def look() -> None:
        while not have_met.wait(0.2):
            dead = {rank: child for rank, child in children.items() if child.poll()}
            for rank, child in dead.items():
                _end_unborn(rank, child, children)

    threading.Thread(target=look, daemon=True).start()
    try:
        yield
    finally:
        have_met.set()


def end_unmet(children: Mapping[int, Popen], rank: int, number: int) -> NoReturn:
    """A signal comes while processes meet: nobody is left waiting for them, and the first one says so."""
    for child in children.values():
        child.kill()
    if rank == 0:
        sys.stderr.write(f"fedlit: stopped by {signal.Signals(number).name} before the first round\n")
    end(128 + number)


def _end_unborn(rank: int, child: Popen, children: Mapping[int, Popen]) -> NoReturn:
    for other in children.values():
        other.kill()
    if child.returncode == REFUSED:
        end(REFUSED)  # it has said why
    if child.returncode > 128:
        end_unmet(children, 0, child.returncode - 128)
    say_error(f"rank {rank} has died before the first round ({ending(child)})")
    end(LOST)


def ending(child: Popen) -> str | None:
    """How a process ended, in words; None if it has not."""
    try:
        code = child.wait(5 * MOMENT)  # its links are closed: it is about to
    except TimeoutExpired:
        return None
    if code < 0:
        return f"by {signal.Signals(-code).name}"
    return f"exit code {code}"


def say_error(line: str) -> None:
    sys.stderr.write(f"fedlit: error: {line}\n")


def end(code: int) -> NoReturn:
    """At once, from any thread: the main one may be stuck for ever."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(code)
