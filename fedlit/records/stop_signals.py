"""The signals that end a run: the first after the batch or round, a second at once."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SAME = 0.5  # seconds in which a second is taken for the first, which a wrapper has passed on once more
END = os._exit  # as it is before anybody replaces it


@contextmanager
def stop_signals(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop` with the first SIGINT, SIGTERM or SIGHUP; a second one ends the process at once.

    SIGHUP comes when a terminal is closed; where it is ignored, as under nohup, it stays so. Python's own handlers wait
    for the main thread, which may be busy in C for long, so a thread receives the signals.
    """
    if threading.current_thread() is not threading.main_thread():  # only the main thread may handle signals
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    heard = [number for number in NUMBERS if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN]
    before: dict[int, Any] = {number: signal.signal(number, _do_nothing) for number in heard}
    wakeup = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(reading, stop), daemon=True)
    thread.start()
    try:
        yield
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(writing)
        thread.join(timeout=SAME)


def _do_nothing(number: int, frame: object) -> None:
    """Where there is a handler, Python writes the signal to the thread's pipe."""


def _listen(reading: int, stop: Callable[[int], None]) -> None:
    first: float | None = None
    while numbers := os.read(reading, 1):
        if numbers[0] not in NUMBERS:  # another signal that has a Python handler
            continue
        if first is None:
            first = monotonic()
            stop(numbers[0])
        elif monotonic() - first > SAME:
            END(128 + numbers[0])  # without clean-up: checkpoints are whole at every moment
    os.close(reading)
