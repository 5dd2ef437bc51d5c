"""Where the time of a fit goes, by Lightning's profilers: visits, the server, evaluation, records, checkpoints.

These follow one another and are never nested, so that every profiler can take them.
"""

from pathlib import Path

from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, SimpleProfiler

PROFILERS: dict[str, type[Profiler]] = {"simple": SimpleProfiler, "advanced": AdvancedProfiler}


def make_profiler(given: Profiler | str | None) -> Profiler:
    """The profiler of a federation; without one, what it does is to pass on."""
    if given is None:
        return PassThroughProfiler()
    if isinstance(given, Profiler):
        return given
    if given not in PROFILERS:
        raise ValueError(
            f"`trainer.profiler` must be {', '.join(PROFILERS)} or a profiler of lightning.pytorch.profilers, got "
            f"{given!r}."
        )
    return PROFILERS[given]()


def tell_profile(profiler: Profiler, folder: Path | None) -> None:
    """Let a profiler say, or write into the folder of the run, what it has found."""
    if isinstance(profiler, PassThroughProfiler):
        return
    profiler.setup("fit", log_dir=None if folder is None else str(folder))
    profiler.describe()
    profiler.teardown("fit")
