"""Runs of a study side by side, each a `fedlit fit` in a process of its own (`births`), and an `adapt` if asked for.

A run is claimed by a lock on its folder, which its process inherits: two calls never make one run at once, also when
the first was killed and left its processes behind. What is done is never run again; what was begun goes on.

What goes wrong with one run (its process dies, hangs, or its folder is deleted; the disk is full) is that run's
failure, and the others go on.
"""

import os
import time
from collections import deque
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, Signals
from time import monotonic
from typing import TextIO

from fedlit.records.files import NOT_WRITTEN, is_full
from fedlit.records.run_folder import lock_folder
from fedlit.records.stop_signals import stop_signals
from fedlit.studies.births import NewProcesses, Nursery, Process
from fedlit.studies.progress import StudyProgress
from fedlit.studies.runs import LOG, Command, Run

PAUSE = 0.2  # seconds between two looks at the runs
GRACE = 30.0  # seconds that a run has to save itself after `run_timeout`


@dataclass
class Job:
    """A run that is under way.

    Attributes:
        run: The run.
        command: That its process was called for.
        process: Of the command.
        lock: The claim on the run's folder.
        begun: When the run began in this call.
        late: When it was asked to end, as its time was over; None if it was not.
    """

    run: Run
    command: Command
    process: Process
    lock: TextIO
    begun: float = field(default_factory=monotonic)
    late: float | None = None


class Execution:
    """Makes runs, so many at a time.

    Args:
        runs: In the order in which they begin.
        jobs: How many are made at once.
        progress: Where a person is told.
        waits: Whether to wait for runs that another call is making, and to make those that it leaves.
        births: How their processes begin.
        run_timeout: Seconds after which a run is ended and has failed; None waits however long it takes.

    Attributes:
        failures: Why a run has failed.
        is_disk_full: Whether a run has failed for want of room on the disk.
        stopped_by: The signal that ended the study early, if one did.
    """

    def __init__(
        self,
        runs: Iterable[Run],
        jobs: int,
        progress: StudyProgress,
        waits: bool,
        births: NewProcesses | Nursery,
        run_timeout: float | None = None,
    ) -> None:
        self.queue = deque(runs)
        self.jobs = jobs
        self.progress = progress
        self.waits = waits
        self.births = births
        self.run_timeout = run_timeout
        self.held: deque[Run] = deque()  # by another call
        self.active: list[Job] = []
        self.failures: dict[Run, str] = {}
        self.is_disk_full = False
        self.stopped_by: int | None = None
        self.is_stopping = False

    def run(self) -> None:
        """All runs, or until a signal asks to stop: then those under way end after their batch and are saved."""
        with stop_signals(self._note_signal), closing(self.births):
            while self.queue or self.active or (self.held and self.waits):
                self._stop_if_asked()
                self._begin_some()
                time.sleep(PAUSE)
                self._end_late()
                self._end_some()
                self.progress.show([job.run for job in self.active], len(self.held))
                if not self.queue and not self.active and self.stopped_by is None:
                    self.queue.extend(self.held if self.waits else ())
                    self.held.clear()

    def _note_signal(self, number: int) -> None:
        self.stopped_by = number

    def _stop_if_asked(self) -> None:
        if self.stopped_by is None or self.is_stopping:
            return
        self.is_stopping = True
        self.queue.clear()
        self.held.clear()
        for job in self.active:
            job.process.terminate()

    def _begin_some(self) -> None:
        while self.queue and len(self.active) < self.jobs:
            run = self.queue.popleft()
            if run.status == "done":
                self.progress.done(run)
                continue
            try:
                job = start(run, self.births)
            except BlockingIOError:
                self.held.append(run)
                continue
            except (ValueError, OSError) as error:
                self._fail_by(run, error)
                continue
            if job is None:
                self.progress.done(run)
            else:
                self.active.append(job)
                self.progress.begun(run)

    def _end_late(self) -> None:
        """Ask runs that have taken too long to end; kill those that do not."""
        for job in self.active:
            now = monotonic()
            if job.late is not None and now - job.late > GRACE:
                kill(job.process)
            elif job.late is None and self.run_timeout is not None and now - job.begun > self.run_timeout:
                job.late = now
                job.process.terminate()

    def _end_some(self) -> None:
        for job in [*self.active]:
            code = job.process.poll()
            if code is None:
                continue
            self.active.remove(job)
            if not self._went_on(job, code):
                job.lock.close()

    def _went_on(self, job: Job, code: int) -> bool:
        """Whether the run has begun with what it has left to do, under the same claim; else it has ended."""
        left = job.run.next_command
        if left is None:
            self.progress.done(job.run)
        elif self.stopped_by is not None:
            return False  # the next call goes on with it
        elif job.late is not None:
            self._fail(job.run, f"it took longer than `run_timeout`, {self.run_timeout:g} s, and was ended")
        elif code != 0 or left == job.command:
            self.is_disk_full |= code == NOT_WRITTEN and job.run.folder is not None  # else its folder is gone
            self._fail(job.run, reason(job.run, code))
        else:
            try:
                job.process = begun(job.run, left, self.births, job.lock)
                job.command = left
                self.active.append(job)
                return True
            except (ValueError, OSError) as error:
                self._fail_by(job.run, error)
        return False

    def _fail_by(self, run: Run, error: Exception) -> None:
        """Its code or data have changed meanwhile, its folder cannot be written, or no process could be started."""
        self.is_disk_full |= is_full(error)
        self._fail(run, str(error))

    def _fail(self, run: Run, why: str) -> None:
        self.failures[run] = why
        self.progress.failed(run, why)


def start(run: Run, births: NewProcesses | Nursery) -> Job | None:
    """The run's process; None if it is done meanwhile.

    Raises:
        BlockingIOError: Another call is making the run.
        ValueError: Its options, the user's code or data are no longer those that it began with.
    """
    run.root.mkdir(parents=True, exist_ok=True)
    lock = _claimed(run.root)
    command = run.next_command
    if command is None:  # done while we looked away
        lock.close()
        return None
    try:
        return Job(run, command, begun(run, command, births, lock), lock)
    except (ValueError, OSError):
        lock.close()
        raise


def begun(run: Run, command: Command, births: NewProcesses | Nursery, lock: TextIO) -> Process:
    """A process of a run that is claimed by the lock."""
    config = run.write_config()
    with (run.root / LOG).open("a") as log:  # the claim outlives us as long as the run does
        return births.start(run.arguments(command, config), log.fileno(), lock.fileno())


def _claimed(root: Path) -> TextIO:
    try:
        return lock_folder(root)
    except ValueError as error:
        raise BlockingIOError from error


def kill(process: Process) -> None:
    """End a run's process and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, SIGKILL)  # it leads a session


def reason(run: Run, code: int) -> str:
    """Why a run failed: the last line that it printed."""
    log = run.root / LOG
    if not run.root.exists():
        return f"{run.root} is gone: it was deleted while the run was writing it (exit {code})"
    try:
        lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    except OSError as error:
        return f"{log} cannot be read: {error.strerror} (exit {code})"
    last = lines[-1].strip() if lines else "no word"
    if code < 0:
        return f"killed by {Signals(-code).name}; its last line: {last} (all of it in {log})"
    return f"{last.removeprefix('fedlit: error: ')} (exit {code}; all of it in {log})"
