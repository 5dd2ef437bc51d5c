"""fedlit against tight hand-written PyTorch loops of the same work: `make bench`, or `python -m benchmarks W1 W2`.

Each side is a process of its own on the same core, with one thread and the same allocator setting; they take turns, so
that a busy machine slows both. Fast mode is measured against a loop that may round otherwise, too. A turn is some
rounds with all that belongs to them: training, aggregation, records, and at its end an evaluation of the same models on
the same samples and a checkpoint. A ratio is of CPU seconds of neighbouring turns.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import warnings
from pathlib import Path
from typing import Any

Figures = dict[str, Any]
Turn = dict[str, float]
COLUMNS = ("row", "work", "mode", "goal", "ratio", "(middle half)", "tight ms", "fedlit ms", "tight MB", "fedlit MB")
SIDES = ("tight", "fedlit")
BEYOND = "W9t"  # the row that tells what local training costs beyond its steps
BEYOND_GOAL = 0.4


class Worker:
    """A process that takes a turn when it is asked to."""

    def __init__(self, name: str, side: str) -> None:
        from benchmarks.worker import run
        from benchmarks.workloads import WORKLOADS

        fork = multiprocessing.get_context("fork")  # what takes seconds to import is imported once
        self.connection, theirs = fork.Pipe()
        self.process = fork.Process(target=run, args=(WORKLOADS[name], side, theirs), daemon=True)
        self.process.start()
        theirs.close()
        self.connection.recv()  # warmed up

    def turn(self) -> Turn:
        self.connection.send(True)
        return self.connection.recv()

    def end(self) -> None:
        self.connection.send(False)
        self.process.join()


def compare(name: str, modes: list[str], turns: int) -> dict[str, Figures]:
    """Figures of a row, by mode."""
    from benchmarks.workloads import WORKLOADS

    work = WORKLOADS[name]
    sides = [f"{side} {mode}" for mode in modes for side in SIDES]
    workers = {side: Worker(name, side) for side in sides}
    taken: dict[str, list[Turn]] = {side: [] for side in workers}
    for _ in range(turns):
        for side, worker in workers.items():
            taken[side].append(worker.turn())
    for worker in workers.values():
        worker.end()
    figures = {}
    for mode in modes:
        goal = work.goal if mode == "exact" else None
        figures[mode] = {"title": work.title, "goal": goal, **middle(taken[f"fedlit {mode}"], taken[f"tight {mode}"])}
        for side in SIDES:
            turns_of_side = taken[f"{side} {mode}"]
            figures[mode][f"{side}_ms"] = 1000 * statistics.median(t["cpu"] for t in turns_of_side) / work.rounds
            figures[mode][f"{side}_mb"] = turns_of_side[-1]["peak"]
        beyond = figures[mode]["fedlit_ms"] - figures[mode]["tight_ms"]
        figures[mode]["ms_per_client"] = beyond / work.per_round
    return figures


def middle(ours: list[Turn], theirs: list[Turn]) -> dict[str, float]:
    """The median ratio of neighbouring turns, and the middle half."""
    ratios = sorted(a["cpu"] / b["cpu"] for a, b in zip(ours, theirs, strict=True))
    quarter = len(ratios) // 4
    return {"ratio": statistics.median(ratios), "low": ratios[quarter], "high": ratios[-1 - quarter]}


def cells(results: dict[str, dict[str, Figures]]) -> list[list[str]]:
    """The table, a list of cells for each line."""
    lines = [list(COLUMNS)]
    for name, by_mode in results.items():
        for mode, f in by_mode.items():
            goal = "" if f["goal"] is None else f"{f['goal']:.2f}"
            measured = [f"{f['ratio']:.2f}", f"{f['low']:.2f}-{f['high']:.2f}"]
            times = [f"{f[key]:.1f}" for key in ("tight_ms", "fedlit_ms")]
            memory = [f"{f[key]:.0f}" for key in ("tight_mb", "fedlit_mb")]
            lines.append([name, f["title"], mode, goal, *measured, *times, *memory])
    return lines


def plain(lines: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    texts = 3  # columns of words, the others are numbers
    shown = []
    for line in lines:
        words = [cell.ljust(width) for cell, width in zip(line[:texts], widths, strict=False)]
        numbers = [cell.rjust(width) for cell, width in zip(line[texts:], widths[texts:], strict=True)]
        shown.append("  ".join([*words, *numbers]))
    return "\n".join(shown)


def markdown(lines: list[list[str]]) -> str:
    head, *body = lines
    rule = ["---"] * 3 + ["---:"] * (len(head) - 3)
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *body))


def beyond_steps(results: dict[str, dict[str, Figures]]) -> str | None:
    """What local training of one client costs beyond its steps, in words."""
    if "exact" not in results.get(BEYOND, {}):
        return None
    found = results[BEYOND]["exact"]["ms_per_client"]
    return f"One local training costs {found:.2f} ms beyond its steps ({BEYOND}; goal {BEYOND_GOAL})."


def shown(content: dict[str, Any], as_markdown: bool) -> str:
    lines = cells(content["rows"])
    table = markdown(lines) if as_markdown else plain(lines)
    processor = f"CPU: {content['processor']}; torch {content['torch']}; {content['turns']} turns of each side."
    return "\n\n".join(filter(None, [table, beyond_steps(content["rows"]), processor]))


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "unknown")


def measure(options: argparse.Namespace, parser: argparse.ArgumentParser) -> dict[str, Any]:
    os.environ["OMP_NUM_THREADS"] = "1"  # before torch is imported
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {options.core})
    warnings.filterwarnings("ignore", category=UserWarning)
    import torch

    from benchmarks.workloads import WORKLOADS

    unknown = [name for name in options.rows if name not in WORKLOADS]
    if unknown:
        parser.error(f"there is no row {unknown[0]}; choose from {', '.join(WORKLOADS)}")
    rows = {}
    for name in options.rows or WORKLOADS:
        work = WORKLOADS[name]
        print(f"{name}: {work.title} ...", file=sys.stderr, flush=True)
        rows[name] = compare(name, options.modes or list(work.modes), options.turns or work.turns)
    turns = sorted({options.turns or WORKLOADS[name].turns for name in rows})
    spread = str(turns[0]) if len(turns) == 1 else f"{turns[0]} to {turns[-1]}"
    return {"processor": processor(), "torch": torch.__version__, "turns": spread, "rows": rows}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help="such as W1 or W2-Adam; all by default")
    parser.add_argument("--modes", nargs="+", choices=["exact", "fast"], help="of fedlit; by default, the row's own")
    parser.add_argument("--turns", type=int, help="of each side; by default, the row's own number")
    parser.add_argument("--core", type=int, default=0, help="the core that all sides share")
    parser.add_argument("--output", default="benchmarks/results.json", help="where the figures go")
    parser.add_argument("--markdown", action="store_true", help="print the table for docs/performance.md")
    parser.add_argument("--show", metavar="FILE", help="print the figures of an earlier run and measure nothing")
    options = parser.parse_args()
    if options.show:
        content = json.loads(Path(options.show).read_text())
    else:
        content = measure(options, parser)
        Path(options.output).write_text(json.dumps(content, indent=1) + "\n")
        print(f"figures in {options.output}", file=sys.stderr)
    print(shown(content, options.markdown))


if __name__ == "__main__":
    main()
