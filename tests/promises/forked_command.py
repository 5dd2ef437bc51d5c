"""The `fedlit` command in a forked child: all is imported once, and a case that hangs or crashes is only a case."""

import io
import os
import resource
import signal
import sys
import time
import traceback
import urllib.error
import urllib.request
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

from fedlit.cli.command import main

LATER = ("fedlit.cli.app", "fedlit.cli.compare", "fedlit.cli.report", "fedlit.cli.resolve", "torchvision.datasets")
for name in LATER:  # what the command would import, in this order: fedlit mends torchvision
    import_module(name)

SECONDS = 5.0  # of its own time
PATIENCE = 30.0  # of the clock: other work on the machine is not the case's fault
ROOM = 12 * 2**30  # bytes of address space, most of it of libraries
MOST_CHARACTERS = 1000  # of a refusal


@dataclass(frozen=True)
class Case:
    """Arguments of the command, what a refusal of them must name, and what is special around it.

    Attributes:
        args: After `fedlit`.
        names: One of these must be in a refusal; none is anything.
        environment: Variables that are set.
        runs_for_ever: Legal, and so long that it is enough if it has begun.
    """

    args: tuple[str, ...]
    names: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    runs_for_ever: bool = False

    def __str__(self) -> str:
        told = " ".join([*(f"{key}={value}" for key, value in self.environment.items()), *self.args])
        if len(told) > 160:
            told = f"{told[:120]} ... {told[-30:]}"
        return told.encode("unicode_escape", "surrogatepass").decode().replace("/", "-")


@dataclass(frozen=True)
class End:
    """How a case ended: an exit code, minus a signal, or None if it had to be killed for its time."""

    code: int | None
    out: str
    err: str
    seconds: float
    written: frozenset[str]

    def faults(self, case: Case) -> list[str]:
        """What is wrong with it."""
        lines = [line for line in self.err.splitlines() if not line.startswith("fedlit: note: ")]
        found = []
        if self.code is None and not (case.runs_for_ever and "round 1/" in self.out):
            found.append(f"took more than {SECONDS} s")
        if self.code not in (None, 0, 2, 3):  # 3: it was legal, and no client got through
            found.append(f"ended with {self.code}")
        if "Traceback" in self.err:
            found.append("traceback")
        allowed = "runs" if self.code == 0 or case.runs_for_ever else "nothing"
        written = sorted(name for name in self.written if name.split("/")[0] != allowed)
        if written:
            found.append(f"wrote {', '.join(written)}")
        if self.code == 0 and len(lines) > 3:
            found.append(f"{len(lines)} lines on stderr")
        if self.code == 2:
            found += self._faults_of_refusal(case, lines)
        return found

    def _faults_of_refusal(self, case: Case, lines: list[str]) -> list[str]:
        found = []
        if len(lines) != 1 or not lines[0].startswith("fedlit: error: "):
            found.append(f"{len(lines)} lines in place of one refusal")
        if self.out:
            found.append("output beside a refusal")
        if len(self.err) > MOST_CHARACTERS:
            found.append(f"{len(self.err)} characters")
        if case.names and not any(name in self.err for name in case.names):
            found.append(f"does not name {' or '.join(case.names)}")
        return found


def run(case: Case, folder: Path) -> End:
    """The end of a case that is typed in a folder."""
    before = _listing(folder)
    with TemporaryFile() as out, TemporaryFile() as err:
        start = time.monotonic()
        child = os.fork()
        if child == 0:
            _as_a_command(case, folder, out.fileno(), err.fileno())
        code, seconds = _wait(child, start)
        texts = [_text(file) for file in (out, err)]
    written = {name for name, entry in _listing(folder).items() if before.get(name) != entry}
    return End(code, *texts, seconds, frozenset(written))


def _text(file: io.BufferedRandom) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns if path.is_file() else 0)
    return found


def _wait(child: int, start: float) -> tuple[int | None, float]:
    """Its exit code and its own seconds; killed with all that it started if it takes too long."""
    while True:
        found, status, used = os.wait4(child, os.WNOHANG)
        elapsed = time.monotonic() - start
        if found:
            seconds = used.ru_utime + used.ru_stime
            code = os.waitstatus_to_exitcode(status)
            return (None if code == -signal.SIGXCPU else code), seconds
        if elapsed > PATIENCE:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None, elapsed
        time.sleep(0.005)


def _as_a_command(case: Case, folder: Path, out: int, err: int) -> None:
    """In the child: what the console script does; never returns."""
    code = 1
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (int(SECONDS), int(SECONDS) + 1))
        resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        os.environ.update(case.environment)
        _fresh_interpreter(out, err)
        script = str(Path(sys.executable).with_name("fedlit"))
        sys.argv = [script, *case.args]
        code = _exit_code()
    finally:
        os._exit(code)


def _fresh_interpreter(out: int, err: int) -> None:
    """Streams, warnings and signals as a new interpreter has them, whatever a test runner did to them."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
    sys.stdout = sys.__stdout__ = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    errors = io.FileIO(2, "w", closefd=False)
    sys.stderr = sys.__stderr__ = io.TextIOWrapper(errors, errors="backslashreplace", write_through=True)
    warnings.resetwarnings()
    for category in (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning):
        warnings.simplefilter("ignore", category)
    sys.modules["__main__"].__spec__ = None  # further processes are started by the script, not by a test runner
    sys.dont_write_bytecode = True
    urllib.request.urlopen = _no_network


def _no_network(*args: object, **kwargs: object) -> None:
    raise urllib.error.URLError("no network in tests")


def _exit_code() -> int:
    try:
        main()
    except SystemExit as end:
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
            return 1
        return end.code or 0
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0
