"""A process that has the pretend CUDA device, and runs functions for tests that do not have it.

It imports torch and fedlit once. Each function then runs in a fork of its own: the device is as yet unused, its
counts are 0, and nothing that one test does is seen by another.
"""

import io
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

from device.build import built

PRELOADED = ("fedlit", "torch", "lightning.pytorch", "fedlit.federation", "fedlit.methods", "fedlit.data")
TIMEOUT = 120.0


class FailedOnDevice(AssertionError):
    """A function raised, or its process ended: what it raised, and what it printed."""


class DeviceProcess:
    """Runs functions on the pretend device."""

    def __init__(self) -> None:
        folder = built()
        path = os.pathsep.join([str(folder), *(entry for entry in sys.path if entry)])
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the process)
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from device.process import serve; serve()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "120", "PYTHONPATH": path},
        )

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = TIMEOUT, **options: Any) -> Any:
        """What a top-level function returns there; it, its arguments and its result are pickled (in host memory)."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # then there is no answer
            _send(self._process.stdin, pickle.dumps((os.getcwd(), timeout, pickle.dumps((function, args, options)))))
        answer = _receive(self._process.stdout)
        if answer is None:
            self._errors.seek(0)
            printed = self._errors.read().decode(errors="replace")[-8000:]
            raise FailedOnDevice(f"The process of the pretend device has ended.\n--- printed:\n{printed}")
        is_fine, value, printed = pickle.loads(answer)
        if not is_fine:
            raise FailedOnDevice(f"{value}\n--- printed:\n{printed}")
        return value

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()


def _send(stream: IO[bytes], message: bytes) -> None:
    stream.write(len(message).to_bytes(8, "big") + message)
    stream.flush()


def _receive(stream: IO[bytes]) -> bytes | None:
    length = stream.read(8)
    return stream.read(int.from_bytes(length, "big")) if len(length) == 8 else None


def serve() -> None:
    """Run one function after the other, each in a fork, until the pipe is closed."""
    import importlib

    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what is printed does not get between the answers
    for name in PRELOADED:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)
    while (request := _receive(sys.stdin.buffer)) is not None:
        _send(answers, _run_in_fork(*pickle.loads(request)))
    os._exit(0)  # torch would take its time to go


def _run_in_fork(folder: str, timeout: float, call: bytes) -> bytes:
    try:
        function, args, options = pickle.loads(call)  # here, so that its module is imported once for all
    except Exception:
        return pickle.dumps((False, traceback.format_exc(), ""))
    with tempfile.TemporaryFile() as result, tempfile.TemporaryFile() as printed:
        child = os.fork()
        if child == 0:
            _answer(folder, timeout, function, args, options, result, printed)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        printed.seek(0)
        said = printed.read().decode(errors="replace")[-8000:]
        result.seek(0)
        content = result.read()
    if status != 0 or not content:
        reason = f"no answer within {timeout:g} s" if status == -signal.SIGALRM else f"its process ended with {status}"
        return pickle.dumps((False, f"{function.__qualname__}: {reason}", said))
    return pickle.dumps((*pickle.loads(content), said))


def _answer(
    folder: str, timeout: float, function: Any, args: Any, options: Any, result: IO[bytes], printed: IO[bytes]
) -> None:
    """Write what a function returns, or raises; ends this process."""
    os.dup2(printed.fileno(), 1)
    os.dup2(printed.fileno(), 2)
    os.chdir(folder)
    signal.setitimer(signal.ITIMER_REAL, timeout)
    answer = io.BytesIO()
    try:
        pickle.dump((True, function(*args, **options)), answer)
    except BaseException:
        answer = io.BytesIO(pickle.dumps((False, traceback.format_exc())))
    result.write(answer.getvalue())
    result.flush()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
