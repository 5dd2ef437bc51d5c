"""The leaderboard: every method on four settings, with intervals."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isnan
from pathlib import Path

import pandas as pd

from fedlit.studies.options import check_keys, read_mapping
from fedlit.studies.results import Estimate, estimate
from fedlit.studies.study import Cell, read_study
from fedlit.studies.tables import describe_difference, size
from tools.paper_pages.evidence import NOT_RUN, answering
from tools.paper_pages.figure import board_figure
from tools.paper_pages.page import MADE
from tools.paper_pages.recorded import RecordedResults
from tools.paper_pages.source import RunSet
from tools.paper_pages.table import table

MEASURES = ("global", "own", "worst")
BASELINE = "FedAvg"
ALONE = "LocalOnly"
KEYS = ("title", "text", "runs")
FIGURE = "papers/figures/leaderboard.svg"  # from the page


@dataclass(frozen=True)
class Leaderboard:
    """What the page says beside its numbers."""

    title: str
    text: str
    runs: tuple[RunSet, ...]

    @classmethod
    def read(cls, path: Path) -> "Leaderboard":
        """From docs/papers/src/leaderboard.yaml."""
        content = read_mapping(path)
        check_keys(content, KEYS, str(path))
        return cls(content["title"], content["text"], tuple(RunSet(**given) for given in content["runs"]))


def leaderboard_page(board: Leaderboard, root: Path) -> str:
    """The whole page."""
    runs, results = answering(root, board.runs)
    study = read_study(root / "configs" / runs.study)
    commands = "\n".join(f"{one.command}  # {one.name}: {one.size}" for one in board.runs)
    blocks = [f"# {board.title}", MADE, board.text, study.note, f"```bash\n{commands}\n```"]
    if results is None:
        blocks.append(f"{NOT_RUN.capitalize()}.")
        results = RecordedResults(study, {}, {}, [])
    blocks.append(
        f"The numbers are of `{runs.name}`: {runs.size}. Accuracies in %, as mean [95 % interval of the mean] over "
        f"{len(study.seeds)} pairs of seeds; the last column is the paired difference of `own` to {BASELINE}. Bytes "
        "sent and received in a run; seconds of its rounds, on a shared core. (k): only k runs are done. Below each "
        "table: the methods whose difference has a 95 % interval that excludes 0, without correction for multiple "
        "comparisons."
    )
    if own_accuracies(results):
        blocks.append(
            f"![own accuracy of every method, by setting]({FIGURE})\n\nOwn accuracy with its 95 % interval; dashed: "
            f"{BASELINE} and {ALONE}."
        )
    for setting in settings(results):
        blocks += [f"## {setting}", _setting(results, setting)]
    return "\n\n".join(block.strip() for block in blocks) + "\n"


def settings(results: RecordedResults) -> list[str]:
    """The settings of the study, in its order."""
    return list(dict.fromkeys(column.rpartition(", ")[0] for column in results.study.columns))


def _setting(results: RecordedResults, setting: str) -> str:
    ended = results.runs[results.runs["status"].isin(["done", "failed"])]
    if not any(column.startswith(f"{setting}, ") for column in ended["column"]):
        return f"{NOT_RUN.capitalize()}."
    rows = []
    for method in results.study.rows:
        cells = {name: results.study.cell(method, f"{setting}, {name}") for name in MEASURES}
        shown = [_number(results, cell) for cell in cells.values()]
        rows.append((method, *shown, *_cost(results, cells["own"]), over_baseline(results, method, setting)))
    numbers = table(("method", *MEASURES, "bytes", "seconds", f"own, difference to {BASELINE}"), rows)
    return f"{numbers}\n\n{ahead_and_behind(results, setting, BASELINE)}\n{ahead_and_behind(results, setting, ALONE)}"


def ahead_and_behind(results: RecordedResults, setting: str, over: str) -> str:
    """Whose own accuracy differs from another method's by a paired interval that excludes 0."""
    ahead = []
    behind = []
    for method in results.study.rows:
        found = _over(results, method, setting, over)
        if found is not None and found.excludes_zero:
            side = ahead if found.mean > 0 else behind
            side.append(method)
    return f"Own accuracy ahead of {over}'s: {', '.join(ahead) or 'none'}; behind: {', '.join(behind) or 'none'}."


def _number(results: RecordedResults, cell: Cell | None) -> str:
    """Mean and interval; why there is none."""
    if cell is None:
        return "–"
    found = estimate(list(results.values(cell).values()))
    if found.n == 0:
        return _why_none(results, cell)
    return interval(found, len(results.study.seeds))


def interval(found: Estimate, wanted: int) -> str:
    """A mean in per cent with its interval.

    Example:
        >>> interval(Estimate(5, 0.5, 0.1, 0.4, 0.6, 0.01), 5)
        '50.0 [40.0, 60.0]'
    """
    text = f"{100 * found.mean:.1f}"
    if not isnan(found.low):
        text += f" [{100 * found.low:.1f}, {100 * found.high:.1f}]"
    if found.n < wanted:
        text += f" ({found.n})"
    return text


def _why_none(results: RecordedResults, cell: Cell) -> str:
    states = set(_lines(results, cell)["status"])
    return "failed" if "failed" in states else NOT_RUN


def _lines(results: RecordedResults, cell: Cell) -> pd.DataFrame:
    runs = results.runs
    return runs[(runs["row"] == cell.row) & (runs["column"] == cell.column)]


def _cost(results: RecordedResults, cell: Cell | None) -> tuple[str, str]:
    if cell is None or not results.values(cell):
        return "", ""
    lines = _lines(results, cell)
    done = lines[lines["status"] == "done"]
    return size(done["bytes"].astype(float).mean()), f"{done['seconds'].astype(float).mean():.0f}"


def over_baseline(results: RecordedResults, method: str, setting: str) -> str:
    """What a method's own accuracy has over the baseline's; nothing for the baseline itself."""
    cell = results.study.cell(method, f"{setting}, own")
    found = _over(results, method, setting, BASELINE)
    if cell is None or found is None:
        return "–"
    if found.n == 0:
        return NOT_RUN
    return describe_difference(found, cell.measure)


def _over(results: RecordedResults, method: str, setting: str, other: str) -> Estimate | None:
    """The paired difference of two methods' own accuracies; None where there are not two."""
    cell = results.study.cell(method, f"{setting}, own")
    baseline = results.study.cell(other, f"{setting}, own")
    if method == other or cell is None or baseline is None:
        return None
    return results.difference(cell, baseline)


def own_accuracies(results: RecordedResults) -> dict[str, dict[str, Estimate]]:
    """Of every setting that was run, each method's own accuracy."""
    found: dict[str, dict[str, Estimate]] = {}
    for setting in settings(results):
        for method in results.study.rows:
            cell = results.study.cell(method, f"{setting}, own")
            values = [] if cell is None else list(results.values(cell).values())
            if values:
                found.setdefault(setting, {})[method] = estimate(values)
    return found


def leaderboard_figure(board: Leaderboard, root: Path) -> str | None:
    """Of all settings that were run, as SVG; None if none was."""
    _, results = answering(root, board.runs)
    found = {} if results is None else own_accuracies(results)
    return board_figure(found, (BASELINE, ALONE)) if found else None


def in_one_line(board: Leaderboard, root: Path, names: list[str]) -> Mapping[str, str]:
    """For the pages of methods: what each has over FedAvg in every setting, bold where its interval excludes 0."""
    _, results = answering(root, board.runs)
    found = dict.fromkeys(names, NOT_RUN)
    if results is None:
        return found
    for name in names:
        parts = [_in_short(results, name, setting) for setting in settings(results)]
        run = [part for part in parts if part is not None]
        if run:
            what = "own accuracy" if name == BASELINE else f"difference to {BASELINE} (own accuracy, points)"
            found[name] = f"{what}: {', '.join(run)}"
    return found


def _in_short(results: RecordedResults, method: str, setting: str) -> str | None:
    """One setting's number, without its interval; None if it was not run."""
    cell = results.study.cell(method, f"{setting}, own")
    if method == BASELINE and cell is not None and results.values(cell):
        return f"{100 * estimate(list(results.values(cell).values())).mean:.1f} {setting}"
    found = _over(results, method, setting, BASELINE)
    if found is None or found.n == 0:
        return None
    number = f"{100 * found.mean:+.1f}"
    return f"**{number}** {setting}" if found.excludes_zero else f"{number} {setting}"
