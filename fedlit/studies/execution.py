"""Runs of a study side by side, each a `fedlit fit` in a process of its own, and an `adapt` if asked for.

A run is claimed by a lock on its folder, which its process inherits: two calls never make one run at once, also when
the first was killed and left its processes behind. A finished run is never repeated; an unfinished one is resumed.

If a run's process dies or hangs, its folder is deleted or the disk is full, that run has failed, and the others go on.
"""

import os
import re
import sys
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGKILL, Signals
from time import monotonic
from typing import TextIO

from tqdm.auto import tqdm

from fedlit.records.files import NOT_WRITTEN, is_full
from fedlit.records.progress import duration, shortened
from fedlit.records.run_folder import lock_folder
from fedlit.records.stop_signals import stop_signals
from fedlit.studies.launcher import Launcher, Process
from fedlit.studies.outcome import Outcome
from fedlit.studies.runs import CONFIG, LOG, Command, Run

PAUSE = 0.2  # seconds between two looks at the runs
GRACE = 30.0  # seconds that a run has to save itself after `run_timeout`
ROUND = re.compile(r"^round (\d+)/(\d+) ", re.MULTILINE)
TAIL = 4096  # bytes of a log in which the last round surely stands


class StudyProgress:
    """Shows how many runs are done and about how long the others take: a bar on a terminal, lines elsewhere.

    Args:
        runs: All that this call is to make.
        jobs: Runs at once.
        enabled: Whether to show anything.
    """

    def __init__(self, runs: Iterable[Run], jobs: int, enabled: bool = True) -> None:
        self.runs = list(runs)
        self.jobs = jobs
        self.enabled = enabled
        self.finished: list[Run] = []
        self.seconds: dict[str, list[float]] = defaultdict(list)  # of runs that are done, by cell
        self.starts: dict[Run, float] = {}
        self.bar: tqdm | None = None
        for run in self.runs:
            folder = run.folder
            if folder is not None and run.status == "done":
                with suppress(ValueError, OSError):  # damaged records are reported when results are gathered
                    self.seconds[str(run.cell)].append(seconds_of(run.root, Outcome(folder)))
        if enabled and sys.stderr.isatty():
            self.bar = tqdm(
                total=len(self.runs),
                dynamic_ncols=True,
                bar_format="{l_bar}{bar}| {n:.1f}/{total} runs{postfix}",
            )

    def started(self, run: Run) -> None:
        """A run begins or is resumed."""
        self.starts[run] = monotonic()

    def done(self, run: Run) -> None:
        """A run has finished, in this call or before."""
        self.finished.append(run)
        if run in self.starts:
            seconds = monotonic() - self.starts[run]
            self.seconds[str(run.cell)].append(seconds)
            self._say(f"{run}: done in {duration(seconds)}{self._describe_left()}")

    def failed(self, run: Run, reason: str) -> None:
        """A run has failed."""
        self.finished.append(run)
        self._say(f"{run}: failed: {reason}")

    def show(self, active: list[Run], held: int) -> None:
        """Redraw the bar."""
        if self.bar is None:
            return
        self.bar.n = len(self.finished) + sum(part_done(run) for run in active)
        words = [self._describe_left().removeprefix("; "), *map(str, active)]
        if held:
            words.append(f"{held} by another call")
        self.bar.set_postfix_str(shortened(self.bar, filter(None, words)))

    def close(self) -> None:
        if self.bar is not None:
            self.bar.close()

    def left(self) -> float | None:
        """About how many seconds are left; None before any run is done."""
        if not self.seconds:
            return None
        known = [seconds for of_cell in self.seconds.values() for seconds in of_cell]
        usual = sum(known) / len(known)
        total = 0.0
        for run in self.runs:
            if run in self.finished:
                continue
            of_cell = self.seconds.get(str(run.cell), [usual])
            total += sum(of_cell) / len(of_cell) * (1 - part_done(run))
        return total / self.jobs

    def _describe_left(self) -> str:
        left = self.left()
        if not left:
            return ""
        return f"; about {duration(left)} left"

    def _say(self, line: str) -> None:
        if not self.enabled:
            return
        text = f"[{len(self.finished)}/{len(self.runs)}] {line}"
        if self.bar is not None:
            self.bar.write(text, file=sys.stderr)
        else:
            print(text, flush=True)


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
        progress: Shows what is done.
        waits: Whether to wait for runs that another call is making, and to make those that it leaves.
        launcher: Starts their processes.
        run_timeout: Seconds after which a run is ended and has failed; None is without a limit.

    Attributes:
        failures: Why a run has failed.
        is_disk_full: Whether a run has failed because the disk was full.
        stopped_by: The signal that ended the study early, if one did.
    """

    def __init__(
        self,
        runs: Iterable[Run],
        jobs: int,
        progress: StudyProgress,
        waits: bool,
        launcher: Launcher,
        run_timeout: float | None = None,
    ) -> None:
        self.queue = deque(runs)
        self.jobs = jobs
        self.progress = progress
        self.waits = waits
        self.launcher = launcher
        self.run_timeout = run_timeout
        self.held: deque[Run] = deque()  # by another call
        self.active: list[Job] = []
        self.failures: dict[Run, str] = {}
        self.is_disk_full = False
        self.stopped_by: int | None = None
        self.is_stopping = False

    def run(self) -> None:
        """Make all runs; a signal stops those under way after their batch, and they are saved."""
        with stop_signals(self._note_signal), closing(self.launcher):
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
                job = start(run, self.launcher)
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
                self.progress.started(run)

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
                job.process = start_process(job.run, left, self.launcher, job.lock)
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


def start(run: Run, launcher: Launcher) -> Job | None:
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
        return Job(run, command, start_process(run, command, launcher, lock), lock)
    except (ValueError, OSError):
        lock.close()
        raise


def start_process(run: Run, command: Command, launcher: Launcher, lock: TextIO) -> Process:
    """Start a command of a run that is claimed by the lock."""
    config = run.write_config()
    with (run.root / LOG).open("a") as log:  # the claim outlives us as long as the run does
        return launcher.start(run.arguments(command, config), log.fileno(), lock.fileno())


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
    last = lines[-1].strip() if lines else "no output"
    if code < 0:
        return f"killed by {Signals(-code).name}; its last line: {last} (all of it in {log})"
    return f"{last.removeprefix('fedlit: error: ')} (exit {code}; all of it in {log})"


def part_done(run: Run) -> float:
    """The share of a run's rounds that are done, by what it printed last."""
    try:
        with (run.root / LOG).open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL))
            found = ROUND.findall(file.read().decode(errors="replace"))
    except FileNotFoundError:  # it has not begun, or its folder was deleted
        return 0.0
    if not found:
        return 0.0
    number, total = found[-1]
    return int(number) / int(total)


def seconds_of(root: Path, outcome: Outcome) -> float:
    """Seconds that a run of an earlier call took: from writing its options to its last output, if it ran in one go.

    Its rounds alone would leave out the start of the process, which counts for a small run.
    """
    in_rounds = outcome.total_seconds
    if sum(event["event"] == "fit" for event in outcome.events) > 1:
        return in_rounds
    options = root / CONFIG
    log = root / LOG
    if not (options.exists() and log.exists()):
        return in_rounds
    return max(in_rounds, log.stat().st_mtime - options.stat().st_mtime)
