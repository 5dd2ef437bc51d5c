"""Runs of a study side by side, each a `fedlit fit` in a process of its own, and an `adapt` if asked for.

A run is claimed by a lock on its folder, which its process inherits: two calls never make one run at once, also when
the first was killed and left its processes behind. A finished run is never repeated; an unfinished one is resumed.

On Linux without an accelerator, processes are forks of one that has imported fedlit (multiprocessing's fork server),
as imports take longer than a short run; elsewhere each is a new Python.

If a run's process dies or hangs, its folder is deleted or the disk is full, that run has failed, and the others go on.
"""

import os
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context, parent_process
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import DupFd
from pathlib import Path
from runpy import run_module
from signal import SIGKILL, SIGTERM, Signals
from statistics import fmean
from threading import Thread
from time import monotonic
from typing import Any, TextIO

from fedlit.own_modules import INSTALLED
from fedlit.records.files import NOT_WRITTEN, is_full
from fedlit.records.progress import duration
from fedlit.records.run_folder import lock_folder
from fedlit.records.stop_signals import stop_signals
from fedlit.studies.outcome import Outcome
from fedlit.studies.runs import LOG, Command, Run

PAUSE = 0.2  # seconds between two looks at the runs
GRACE = 30.0  # seconds that a run has to save itself after `run_timeout`
FEDLIT = "fedlit"  # the module that is run
PRELOADED = "fedlit.cli.app"  # by the fork server
ROOT = Path(__file__).parents[2]  # where `fedlit` lies


def start_method() -> str:
    """The fastest way to start processes on this machine: an accelerator's driver does not outlive a fork."""
    import torch

    return "forkserver" if sys.platform == "linux" and not torch.accelerator.is_available() else "spawn"


class Launcher:
    """Starts the processes of runs.

    Args:
        method: `forkserver` or `spawn`, of multiprocessing.
        module: What is run, as by `python -m`.
        preloaded: What the fork server imports once for all.
    """

    def __init__(self, method: str, module: str = FEDLIT, preloaded: str = PRELOADED) -> None:
        self.module = module
        self.context = get_context(method)
        if method == "forkserver":
            self.context.set_forkserver_preload([preloaded])
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # read by torch when it is imported
        os.environ["PYTHONSAFEPATH"] = "1"  # no file in the current folder takes the place of an installed module
        if ROOT not in INSTALLED:  # a checkout may be in use without being installed
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH", ""), str(ROOT)]))

    def start(self, arguments: list[str], log: Path, claim: TextIO) -> BaseProcess:
        """Start a process that prints into a file and holds a claim as long as it runs."""
        given: tuple[Any, ...] = (self.module, arguments, log, Claim(claim))
        process: BaseProcess = self.context.Process(target=run_command, args=given)  # type: ignore[attr-defined]
        process.start()
        return process


class Claim:
    """A lock that a process inherits as it starts: it is held as long as either has it open."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def __reduce__(self) -> Any:
        return _inherit, (DupFd(self.file.fileno()),)


def _inherit(descriptor: Any) -> int:
    return descriptor.detach()


def run_command(module: str, arguments: list[str], log: Path, claim: Claim) -> None:
    """In a process of its own, run `python -m module` with the arguments; the claim is held until it ends."""
    Thread(target=_end_with_study, daemon=True).start()
    os.setsid()  # Ctrl-C reaches the study alone, which passes it on
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    os.environ["COLUMNS"] = "200"
    sys.argv[1:] = arguments
    run_module(module, run_name="__main__", alter_sys=True)


def _end_with_study() -> None:
    """Once the study's process has died, stop as by a signal: the run saves itself."""
    study = parent_process()
    assert study is not None
    study.join()
    os.kill(os.getpid(), SIGTERM)


def seconds_left(runs: Iterable[Run], jobs: int) -> float | None:
    """About how many seconds runs take that are not done, by those that are, of the same cell if there is one."""
    runs = list(runs)
    known: dict[str, list[float]] = defaultdict(list)
    for run in runs:
        if run.status == "done":
            with suppress(ValueError, OSError):  # damaged records are reported when results are gathered
                known[str(run.cell)].append(seconds_of(run.folder or run.root))
    if not known:
        return None
    every = [seconds for of_cell in known.values() for seconds in of_cell]
    return sum(fmean(known.get(str(run.cell), every)) for run in runs if run.status != "done") / jobs


@cache
def seconds_of(folder: Path) -> float:
    """Seconds of a finished run."""
    return Outcome(folder).total_seconds


@dataclass
class Job:
    """A run that is under way.

    Attributes:
        run: The run.
        lock: The claim on the run's folder.
        command: What its process was started for.
        process: The process.
        begun: When the run began in this call.
        late: When it was asked to end, as its time was over; None if it was not.
    """

    run: Run
    lock: TextIO
    command: Command
    process: BaseProcess
    begun: float
    late: float | None = None


@dataclass
class Execution:
    """Makes runs, so many at a time.

    Attributes:
        runs: In the order in which they begin.
        jobs: How many are made at once.
        waits: Whether to wait for runs that another call is making, and to make those that it leaves.
        launcher: Starts their processes.
        run_timeout: Seconds after which a run is ended and has failed; None is without a limit.
        failures: Why a run has failed.
        is_disk_full: Whether a run has failed because the disk was full.
        stopped_by: The signal that ended the study early, if one did.
    """

    runs: list[Run]
    jobs: int
    waits: bool
    launcher: Launcher
    run_timeout: float | None = None
    failures: dict[Run, str] = field(default_factory=dict)
    is_disk_full: bool = False
    stopped_by: int | None = None

    def __post_init__(self) -> None:
        self.queue = deque(self.runs)
        self.held: deque[Run] = deque()  # by another call
        self.active: list[Job] = []
        self.ended = 0
        self.is_stopping = False

    def run(self) -> None:
        """Make all runs; a signal stops those under way after their batch, and they are saved."""
        try:
            with stop_signals(self._note_signal):
                while self.queue or self.active or (self.held and self.waits):
                    self._stop_if_asked()
                    self._begin_some()
                    time.sleep(PAUSE)
                    self._end_late()
                    self._end_some()
                    if not self.queue and not self.active and self.stopped_by is None:
                        self.queue.extend(self.held if self.waits else ())
                        self.held.clear()
        finally:
            for job in self.active:  # after an error: Python waits for them before it exits
                job.process.terminate()

    def _note_signal(self, number: int) -> None:
        self.stopped_by = number  # by another thread

    def _stop_if_asked(self) -> None:
        """After a signal, begin no more runs, and ask those under way to end, once: each saves itself."""
        if self.stopped_by is not None and not self.is_stopping:
            self.is_stopping = True
            self.queue.clear()
            self.held.clear()
            for job in self.active:
                job.process.terminate()

    def _begin_some(self) -> None:
        while self.queue and len(self.active) < self.jobs:
            run = self.queue.popleft()
            if run.status == "done":
                self.ended += 1
                continue
            try:
                run.root.mkdir(parents=True, exist_ok=True)
                lock = lock_folder(run.root)
            except ValueError:
                self.held.append(run)
                continue
            except OSError as error:
                self._fail(run, str(error), is_full(error))
                continue
            if not self._start(run, lock):
                lock.close()

    def _start(self, run: Run, lock: TextIO, begun: float | None = None) -> bool:
        """Start what a claimed run has left to do; whether there is a process now."""
        command = run.next_command
        if command is None:  # another call has made it meanwhile
            self.ended += 1
            return False
        try:
            arguments = run.arguments(command, run.write_config())
            process = self.launcher.start(arguments, run.root / LOG, lock)
        except (ValueError, OSError) as error:  # code or data have changed meanwhile, or the folder cannot be written
            self._fail(run, str(error), is_full(error))
            return False
        self.active.append(Job(run, lock, command, process, begun or monotonic()))
        return True

    def _end_late(self) -> None:
        """Ask runs that have taken too long to end; kill those that do not, with all that they have started."""
        for job in self.active:
            now = monotonic()
            if job.late is not None and now - job.late > GRACE:
                assert job.process.pid is not None
                with suppress(ProcessLookupError):  # it leads a session once it runs
                    os.killpg(job.process.pid, SIGKILL)
                job.process.kill()
            elif job.late is None and self.run_timeout is not None and now - job.begun > self.run_timeout:
                job.late = now
                job.process.terminate()

    def _end_some(self) -> None:
        for job in [*self.active]:
            code = job.process.exitcode
            if code is None:
                continue
            self.active.remove(job)
            if not self._goes_on(job, code):
                job.lock.close()

    def _goes_on(self, job: Job, code: int) -> bool:
        """Whether the run has begun with what it has left to do, under the same claim; else it has ended."""
        left = job.run.next_command
        if left is None:
            rest = seconds_left(self.runs, self.jobs)
            about = f"; about {duration(rest)} left" if rest else ""
            self._end(job.run, f"done in {duration(monotonic() - job.begun)}{about}")
        elif self.stopped_by is not None:
            pass  # the next call goes on with it
        elif job.late is not None:
            self._fail(job.run, f"it took longer than `run_timeout`, {self.run_timeout:g} s, and was ended")
        elif code != 0 or left == job.command:
            is_disk_full = code == NOT_WRITTEN and job.run.folder is not None  # else its folder is gone
            self._fail(job.run, reason(job.run, code), is_disk_full)
        else:
            return self._start(job.run, job.lock, job.begun)
        return False

    def _fail(self, run: Run, why: str, is_disk_full: bool = False) -> None:
        self.is_disk_full |= is_disk_full
        self.failures[run] = why
        self._end(run, f"failed: {why}")

    def _end(self, run: Run, how: str) -> None:
        self.ended += 1
        print(f"[{self.ended}/{len(self.runs)}] {run}: {how}", flush=True)


def reason(run: Run, code: int) -> str:
    """Why a run failed: the last line that it printed."""
    log = run.root / LOG
    if not run.root.exists():
        return f"{run.root} is gone: it was deleted while the run was writing it (exit {code})"
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        return f"{log} cannot be read: {error.strerror} (exit {code})"
    last = lines[-1].strip() if lines else "no output"
    if code < 0:
        return f"killed by {Signals(-code).name}; its last line: {last} (all of it in {log})"
    return f"{last.removeprefix('fedlit: error: ')} (exit {code}; all of it in {log})"
