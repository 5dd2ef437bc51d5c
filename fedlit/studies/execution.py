"""Runs of a study side by side, each a `fedlit fit` in a process of its own (`births`), and an `adapt` if asked for.

A run is claimed by a lock on its folder, which its process inherits: two calls never make one run at once, also when
the first was killed and left its processes behind. What is done is never run again; what was begun goes on.
"""

import time
from collections import deque
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from fedlit.records.run_folder import lock_folder
from fedlit.records.stop_signals import stop_signals
from fedlit.studies.births import NewProcesses, Nursery, Process
from fedlit.studies.progress import StudyProgress
from fedlit.studies.runs import LOG, Command, Run

PAUSE = 0.2  # seconds between two looks at the runs


@dataclass
class Job:
    """A run that is under way."""

    run: Run
    command: Command
    process: Process
    lock: TextIO


class Execution:
    """Makes runs, so many at a time.

    Args:
        runs: In the order in which they begin.
        jobs: How many are made at once.
        progress: Where a person is told.
        waits: Whether to wait for runs that another call is making, and to make those that it leaves.
        births: How their processes begin.
    """

    def __init__(
        self,
        runs: Iterable[Run],
        jobs: int,
        progress: StudyProgress,
        waits: bool,
        births: NewProcesses | Nursery,
    ) -> None:
        self.queue = deque(runs)
        self.jobs = jobs
        self.progress = progress
        self.waits = waits
        self.births = births
        self.held: deque[Run] = deque()  # by another call
        self.active: list[Job] = []
        self.failures: dict[Run, str] = {}
        self.stopped_by: int | None = None
        self.is_stopping = False

    def run(self) -> None:
        """All runs, or until a signal asks to stop: then those under way end after their batch and are saved."""
        with stop_signals(self._note_signal), closing(self.births):
            while self.queue or self.active or (self.held and self.waits):
                self._stop_if_asked()
                self._begin_some()
                time.sleep(PAUSE)
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
            except ValueError as error:  # its code or its data have changed meanwhile
                self._fail(run, str(error))
                continue
            if job is None:
                self.progress.done(run)
            else:
                self.active.append(job)
                self.progress.begun(run)

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
        elif code != 0 or left == job.command:
            self._fail(job.run, reason(job.run, code))
        else:
            try:
                self.active.append(begun(job.run, left, self.births, job.lock))
                return True
            except ValueError as error:  # its code or its data have changed meanwhile
                self._fail(job.run, str(error))
        return False

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
        return begun(run, command, births, lock)
    except ValueError:
        lock.close()
        raise


def begun(run: Run, command: Command, births: NewProcesses | Nursery, lock: TextIO) -> Job:
    """A process of a run that is claimed by the lock."""
    config = run.write_config()
    with (run.root / LOG).open("a") as log:  # the claim outlives us as long as the run does
        process = births.start(run.arguments(command, config), log.fileno(), lock.fileno())
    return Job(run, command, process, lock)


def _claimed(root: Path) -> TextIO:
    try:
        return lock_folder(root)
    except ValueError as error:
        raise BlockingIOError from error


def reason(run: Run, code: int) -> str:
    """Why a run failed: the last line that it printed."""
    log = run.root / LOG
    lines = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
    last = lines[-1].strip() if lines else "no word"
    return f"{last.removeprefix('fedlit: error: ')} (exit {code}; all of it in {log})"
