"""What a person sees of a study that runs: a bar on a terminal, a line for each run elsewhere."""

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from time import monotonic

from tqdm.auto import tqdm

from fedlit.records.progress import shortened
from fedlit.studies.outcome import Outcome
from fedlit.studies.runs import CONFIG, LOG, Run

ROUND = re.compile(r"^round (\d+)/(\d+) ", re.MULTILINE)
TAIL = 4096  # bytes of a log in which the last round surely stands


class StudyProgress:
    """Tells how many runs are done and about how long the others will take.

    Args:
        runs: All that this call is to make.
        jobs: How many are made at once.
        enabled: Whether to tell at all.
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
                with suppress(ValueError, OSError):  # its records are not as it left them: told when they are gathered
                    self.seconds[str(run.cell)].append(seconds_of(run.root, Outcome(folder)))
        if enabled and sys.stderr.isatty():
            self.bar = tqdm(
                total=len(self.runs),
                dynamic_ncols=True,
                bar_format="{l_bar}{bar}| {n:.1f}/{total} runs{postfix}",
            )

    def begun(self, run: Run) -> None:
        """A run begins or goes on."""
        self.starts[run] = monotonic()

    def done(self, run: Run) -> None:
        """A run has ended well; one that was done before counts, too."""
        self.finished.append(run)
        if run in self.starts:
            seconds = monotonic() - self.starts[run]
            self.seconds[str(run.cell)].append(seconds)
            self._say(f"{run}: done in {duration(seconds)}{self._left_in_words()}")

    def failed(self, run: Run, reason: str) -> None:
        """A run has failed."""
        self.finished.append(run)
        self._say(f"{run}: failed: {reason}")

    def show(self, active: list[Run], held: int) -> None:
        """Draw the bar anew."""
        if self.bar is None:
            return
        self.bar.n = len(self.finished) + sum(part_done(run) for run in active)
        words = [self._left_in_words().removeprefix("; "), *map(str, active)]
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

    def _left_in_words(self) -> str:
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


def part_done(run: Run) -> float:
    """The part of a run's rounds that is behind it, by what it printed last."""
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
    """How long a run took that an earlier call has made: from its options to its last word, if it was not cut short.

    Its rounds alone would leave out the start of a process, which a small run feels.
    """
    in_rounds = outcome.total_seconds
    if sum(event["event"] == "fit" for event in outcome.events) > 1:
        return in_rounds
    options = root / CONFIG
    log = root / LOG
    if not (options.exists() and log.exists()):
        return in_rounds
    return max(in_rounds, log.stat().st_mtime - options.stat().st_mtime)


def duration(seconds: float) -> str:
    """A time as one would say it.

    Example:
        >>> duration(42.3), duration(150), duration(7300)
        ('42 s', '2.5 min', '2.0 h')
    """
    if seconds < 100:
        return f"{seconds:.0f} s"
    if seconds < 6000:
        return f"{seconds / 60:.1f} min"
    return f"{seconds / 3600:.1f} h"
