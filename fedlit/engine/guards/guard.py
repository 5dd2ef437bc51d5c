"""Around a client's code: whatever it does, it is left out, and the others find everything as it was.

What is caught and put back, and what cannot be: docs/clients.md.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NoReturn, TypeVar

from fedlit.engine.guards.surroundings import Modes, Rest
from fedlit.engine.module.attributes import Attributes
from fedlit.engine.module.live import LiveModule
from fedlit.engine.plan import Interrupted
from fedlit.engine.usage import UsageError
from fedlit.records.round_record import Failure, failure
from fedlit.records.visit_note import VisitNote

Result = TypeVar("Result")


class ClientExit(BaseException):
    """A client has tried to end the process."""


class Guard:
    """Runs clients' code.

    Args:
        live: The module that it may break.

    Attributes:
        suspects: Clients that were being visited when a process died.
    """

    def __init__(self, live: LiveModule) -> None:
        self.live = live
        self.rest: Rest | None = None
        self.suspects: frozenset[int] = frozenset()
        self._note: VisitNote | None = None
        self._noted: Attributes | None = None

    def watch(self, note: VisitNote | None, suspects: Iterable[int]) -> None:
        """From now on note who is visited in this process.

        Args:
            note: Where; None notes nothing.
            suspects: Clients that an earlier process may have died of.
        """
        self._note = note
        self.suspects = frozenset(suspects)

    def visiting(self, client: int) -> contextlib.AbstractContextManager[None]:
        """Within, a client's code runs in this process, which it may kill."""
        return contextlib.nullcontext() if self._note is None else self._note.of(client)

    def begin_round(self) -> None:
        """Note what is put back after a client that fails."""
        self._noted = None
        parts = {type(part) for part in self.live.parts.values()}
        self.rest = Rest(parts | {kind for kind in type(self.live.module).__mro__ if _is_own(kind)})

    def attempt(
        self,
        work: Callable[[], Result],
        should_stop: Callable[[], bool] = bool,
        is_sound: Callable[[Result], bool] = lambda result: True,
    ) -> Result | Failure:
        """What a client's code returns, or why it did not.

        Args:
            work: The client's code.
            should_stop: Whether the run was asked to end: only then `Interrupted` is not the client's own doing.
            is_sound: Whether what it returned can be used; else all is put back as after an error.
        """
        modes = Modes()
        trained = self.live.trained()
        attributes = self._attributes()
        found: Result | Failure
        is_whole = False
        try:
            with exits_caught():
                found = work()
            is_whole = is_sound(found)
        except BaseException as error:  # SystemExit, GeneratorExit, what somebody has made up ...
            if is_meant_for_us(error, should_stop):
                raise
            found = left_out(error)
        finally:
            modes.restore()
        attributes.restore()
        self.live.module.client = self.live.client  # `aggregate` may ask it for the round
        if is_whole:
            return found
        self.live.mend(trained)
        if self.rest is not None:
            self.rest.restore()
        return found

    def _attributes(self) -> Attributes:
        """As they are now; those of the visit before, if nobody has changed any since, such as `aggregate`."""
        self.live.module.client = None  # it changes with every visit, and is no attribute of a user's
        if self._noted is None or not self._noted.hold():
            self._noted = Attributes(self.live.parts.values())
        return self._noted


def left_out(error: BaseException) -> Failure:
    """Why a client is left out."""
    found = failure(error)
    found.is_usage = isinstance(error, UsageError)
    return found


def _is_own(kind: type) -> bool:
    """Whether a class is the user's: those of torch and Lightning are looked after elsewhere."""
    return kind.__module__.partition(".")[0] not in ("torch", "lightning", "builtins")


def is_meant_for_us(error: BaseException, should_stop: Callable[[], bool]) -> bool:
    """Whether an error in a client's code is not its own doing: somebody asks the run to end."""
    if isinstance(error, Interrupted):
        return should_stop()
    # While a fit handles signals, Python raises no KeyboardInterrupt: this one is the client's own.
    return isinstance(error, KeyboardInterrupt) and signal.getsignal(signal.SIGINT) is signal.default_int_handler


@contextlib.contextmanager
def exits_caught() -> Iterator[None]:
    """Within, `os._exit` and `os.abort` raise in this process; in one that was forked from it they end it as ever."""
    owner = os.getpid()
    ends: dict[str, Callable[..., Any]] = {"_exit": os._exit, "abort": os.abort}

    def caught(name: str, end: Callable[..., Any]) -> Callable[..., NoReturn]:
        def refuse(*status: int) -> NoReturn:
            if os.getpid() != owner:
                end(*status)
            raise ClientExit(f"os.{name}({', '.join(map(str, status))})")

        return refuse

    for name, end in ends.items():
        setattr(os, name, caught(name, end))
    try:
        yield
    finally:
        for name, end in ends.items():
            setattr(os, name, end)
