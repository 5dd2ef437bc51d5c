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
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryFile

from fedlit.cli.command import main

for name in ("fedlit.cli.app", "torchvision.datasets"):  # what the command would import, in this order
    import_module(name)

SECONDS = 5  # of CPU time
PATIENCE = 30.0  # of the clock: other work on the machine is not the case's fault
MEMORY = 12 * 2**30  # bytes of address space, most of it of libraries


@dataclass(frozen=True)
class End:
    """How a command ended: exit code, minus a signal, or None if it had to be killed for its time."""

    code: int | None
    out: str
    err: str
    written: frozenset[str]

    def faults(self, word: str = "") -> list[str]:
        """What is wrong with it, where a refusal must hold a word: it works, or is refused in one line."""
        lines = [line for line in self.err.splitlines() if not line.startswith("fedlit: note: ")]
        refused = self.code == 2
        wrong = {
            f"took more than {SECONDS} s": self.code is None,
            f"ended with {self.code}": self.code not in (None, 0, 2, 3),  # 3: legal, and no client got through
            "traceback": "Traceback" in self.err,
            f"wrote {sorted(self.written)}": refused and bool(self.written),
            f"{len(lines)} lines": len(lines) != 1 if refused else len(lines) > 3,
            "no refusal": refused and not "".join(lines).startswith("fedlit: error: "),
            f"{len(self.err)} characters": refused and len(self.err) > 1000,
            f"does not name {word}": refused and word not in self.err,
        }
        return [fault for fault, is_so in wrong.items() if is_so]


def run(folder: Path, *args: str, **environment: str) -> End:
    """The end of `fedlit args`, typed in a folder."""
    before = _listing(folder)
    with TemporaryFile() as out, TemporaryFile() as err:
        child = os.fork()
        if child == 0:
            _as_a_command(args, environment, folder, out.fileno(), err.fileno())
        code = _wait(child)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="replace"))
    written = {name for name, entry in _listing(folder).items() if before.get(name) != entry}
    return End(code, *texts, frozenset(written))


def _listing(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        found[str(path.relative_to(folder))] = (status.st_size, status.st_mtime_ns if path.is_file() else 0)
    return found


def _wait(child: int) -> int | None:
    """Its exit code; killed with all that it started if it takes too long."""
    start = time.monotonic()
    while time.monotonic() - start < PATIENCE:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            code = os.waitstatus_to_exitcode(status)
            return None if code == -signal.SIGXCPU else code
        time.sleep(0.005)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def _as_a_command(args: tuple[str, ...], environment: dict[str, str], folder: Path, out: int, err: int) -> None:
    """In the child: what the console script does, in an interpreter as if it were new; never returns."""
    code: object = 1
    try:
        os.setsid()
        for limit, most in ((resource.RLIMIT_CPU, SECONDS), (resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_CORE, 0)):
            resource.setrlimit(limit, (most, most + (limit == resource.RLIMIT_CPU)))
        os.chdir(folder)
        os.environ.update(environment)
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
        sys.argv = [str(Path(sys.executable).with_name("fedlit")), *args]
        main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def _no_network(*args: object, **kwargs: object) -> None:
    raise urllib.error.URLError("no network in tests")
