"""The page of a study: one file that opens without a network, every number from the records of the runs.

Its charts are data that page.js draws. Kinds: `lines` (over rounds or bytes), `lanes` (a lane for each row: dots and a
box, an interval, or a bar) and `heat` (clients x classes, in `run_page`). A style is the number of a row: its colour,
dashes and marker.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from math import isnan
from typing import Any, Literal

import numpy as np

from fedlit.studies.config_diff import between_columns, between_rows, unequal_data, unequal_effort
from fedlit.studies.grids import clients_grid, cost_grid, difference_grid, main_grid, reached, target_grid, targets_of
from fedlit.studies.markup import Markup, Page, details, grid_table, tag, words_table
from fedlit.studies.outcome import Outcome
from fedlit.studies.results import Results
from fedlit.studies.run_page import MOST_CLIENTS, Chart, class_counts, heat
from fedlit.studies.series import Curve, curve_of, outcomes_of, points_of, rounds_to_target
from fedlit.studies.study import Cell
from fedlit.studies.wording import difference, metric_label, steps

ENVIRONMENT = ("fedlit", "torch", "lightning", "python", "cpu", "threads", "processes", "fast")


def study_page(results: Results, command: str) -> str:
    """The whole page, as HTML."""
    study = results.study
    page = Page(study.title, [study.source, study.note, _describe_shape(results)])
    _warn(page, results)
    main = main_grid(results)
    main = replace(main, note=main.note.replace("Marked as best:", "Bold:"))
    page.section(main.title, grid_table(main), _runs(results))
    _differences(page, results)
    _curves(page, results)
    _clients(page, results)
    _costs(page, results)
    _partitions(page, results)
    _left_out(page, results)
    _configurations(page, results)
    _origin(page, results, command)
    return str(page)


def _describe_shape(results: Results) -> str:
    """How many rows, columns and runs a study has."""
    study = results.study
    done = len(results.outcomes)
    shape = f"{len(study.rows)} rows"
    if len(study.columns) > 1:
        shape += f", {len(study.columns)} columns"
    return f"{shape}, {len(study.seeds)} pairs of seeds; {done} of {len(study.cells) * len(study.seeds)} runs are done."


def _warn(page: Page, results: Results) -> None:
    """Warnings that stand before the first number."""
    for column, options in unequal_data(results).items():
        where = f" of {column}" if column else ""
        text = f"The rows{where} differ in their data, so their numbers do not compare the methods alone: "
        page.section("Rows differ in their data", tag("p", text, tag("code", ", ".join(options))), warning=True)
    for option, rows in unequal_effort(results).items():
        text = tag("p", "Their recipes differ, and no row sets the option: ", tag("code", f"{option}: {rows}"))
        page.section("Rows differ in how long they train", text, warning=True)
    lines = []
    for _, run in results.runs.iterrows():
        if run["status"] != "done":
            seeds = f"{run['training_seed']} and {run['partition_seed']}"
            lines.append([run["row"], run["column"], seeds, run["status"], ""])
    reasons = {
        (cell.row, cell.column, f"{seeds.training} and {seeds.partition}"): reason
        for (cell, seeds), reason in results.failures.items()
    }
    for line in lines:
        line[4] = reasons.get((line[0], line[1], line[2]), "")
    if lines:
        head = ("row", "column", "seeds of training and partition", "status", "why")
        page.section("Runs that are missing", words_table(head, lines), warning=True)


def _runs(results: Results) -> Markup:
    """Every run's own number."""
    rows = []
    for _, run in results.runs.iterrows():
        value = "" if run["value"] != run["value"] or run["value"] is None else f"{run['value']:.6g}"
        seeds = f"{run['training_seed']} and {run['partition_seed']}"
        rows.append((run["row"], run["column"], seeds, run["status"], value, str(run["folder"])))
    head = ("row", "column", "seeds of training and partition", "status", "value", "folder")
    return details("Every run", words_table(head, rows))


def _differences(page: Page, results: Results) -> None:
    grid = difference_grid(results)
    if grid is not None:
        page.section(grid.title, grid_table(grid), _by_column(page, results, forest))


def _by_column(page: Page, results: Results, chart_of: Callable[[Results, Sequence[Cell]], Chart | None]) -> Markup:
    """A chart for each column."""
    figures = []
    for column in results.study.columns:
        cells = [cell for cell in results.study.cells if cell.column == column]
        chart = chart_of(results, cells)
        if chart is not None:
            figures.append(page.figure(column, chart))
    if not figures:
        return Markup("")
    return tag("div", *figures, class_="charts")


def _curves(page: Page, results: Results) -> None:
    over_rounds = _by_column(page, results, partial(curves, over="rounds"))
    sends = any(cell.measure.is_by_round for cell in results.study.cells)
    over_bytes = _by_column(page, results, partial(curves, over="bytes")) if sends else Markup("")
    legend = page.legend(results.study.rows, "curves")
    note = (
        "Mean over seeds; the band is ± one standard deviation. A row that sends nothing is a level over bytes: its "
        "last value. Click a name to hide it."
    )
    parts = [legend, tag("h3", f"Over {steps(results.study.cells)}s"), over_rounds]
    if sends:
        parts += [tag("h3", "Over bytes"), over_bytes]
    page.section("Curves", *parts, tag("p", note, class_="note"))


def _clients(page: Page, results: Results) -> None:
    grid = clients_grid(results)
    if grid is not None:
        note = "A dot is a client of a run in the end; the box spans the middle half of them, with the median."
        page.section(
            grid.title, grid_table(grid), _by_column(page, results, client_lanes), tag("p", note, class_="note")
        )


def _costs(page: Page, results: Results) -> None:
    cost = cost_grid(results)
    page.section(cost.title, grid_table(cost))
    target = target_grid(results)
    if target is not None:
        page.section(target.title, grid_table(target), _by_column(page, results, target_bars))


def _partitions(page: Page, results: Results) -> None:
    """Who holds what, of the first seeds of every column; columns that hold the same share a picture."""
    shown: dict[str, tuple[Outcome, list[str]]] = {}
    for column in results.study.columns:
        outcome = _first_outcome(results, column)
        if outcome is None or not (outcome.folder / "partition.csv").is_file():
            continue
        key = class_counts(outcome).to_csv()
        shown.setdefault(key, (outcome, []))[1].append(column)
    figures = [page.figure("; ".join(names), heat(class_counts(outcome))) for outcome, names in shown.values()]
    if not figures:
        return
    note = "Training samples of every client by class, of the first pair of seeds."
    clients = max(len(class_counts(outcome)) for outcome, _ in shown.values())
    if clients > MOST_CLIENTS:
        note += f" The first {MOST_CLIENTS} of {clients} clients."
    page.section("Who holds what", tag("div", *figures, class_="charts"), tag("p", note, class_="note"))


def _first_outcome(results: Results, column: str) -> Outcome | None:
    for cell in results.study.cells:
        if cell.column == column:
            for _, outcome in outcomes_of(results, cell):
                return outcome
    return None


def _left_out(page: Page, results: Results) -> None:
    """Who was left out, and why: a line for each client and reason of a run."""
    rounds = defaultdict(list)
    for cell in results.study.cells:
        for seeds, outcome in outcomes_of(results, cell):
            for event in outcome.left_out:
                name = seeds.name.replace("_", " ")
                rounds[str(cell), name, str(event["client"]), str(event["reason"])].append(event["round"])
    if not rounds:
        page.section("Who was left out", tag("p", "Nobody: every client that took part was counted."))
        return
    rows = [(*key, ", ".join(map(str, numbers))) for key, numbers in rounds.items()]
    page.section("Who was left out", words_table(("cell", "run", "client", "why", "rounds"), rows))


def _configurations(page: Page, results: Results) -> None:
    parts = []
    for words, names, options in (
        ("between rows", results.study.rows, between_rows(results)),
        ("between columns", results.study.columns, between_columns(results)),
    ):
        if options:
            lines = [(option, *[values.get(name, "") for name in names]) for option, values in options.items()]
            parts.append(tag("h3", f"What differs {words}"))
            parts.append(words_table(("option", *names), lines))
    if not parts:
        parts = [tag("p", "Nothing but seeds differs between the runs.")]
    page.section("Configurations", *parts)


def _origin(page: Page, results: Results, command: str) -> None:
    """Command, seeds, and what the runs were made with."""
    made_with: Counter[tuple[str, ...]] = Counter()
    for outcome in results.outcomes.values():
        environment = outcome.environment
        made_with[tuple(str(environment.get(name, "not noted")) for name in ENVIRONMENT)] += 1
    lines = [(f"{number} runs", *values) for values, number in made_with.items()]
    seeds = "; ".join(f"training {pair.training}, partition {pair.partition}" for pair in results.study.seeds)
    page.section(
        "How it was made",
        tag("pre", command),
        tag("p", f"Seeds: {seeds}."),
        words_table(("", *ENVIRONMENT), lines),
    )


def curves(results: Results, cells: Sequence[Cell], over: Literal["rounds", "bytes"]) -> Chart:
    """The metric over rounds or bytes, a line for each row with a band of its standard deviation."""
    series = []
    if over == "bytes":
        cells = [cell for cell in cells if cell.measure.is_by_round]  # nothing is sent between local epochs
    for cell in cells:
        curve = curve_of(results, cell)
        if curve is not None:
            series.append(_line(cell.row, results.study.rows.index(cell.row), curve, over))
    label = "; ".join(dict.fromkeys(metric_label(cell.measure) for cell in cells))
    x = name = steps(cells)
    if over == "bytes":
        x, name = "sent by all clients, up and down", "after"
    return {
        "kind": "lines",
        "group": "curves",
        "x": x,
        "xname": name,
        "unit": over,
        "y": label,
        "series": series,
    }


def _line(name: str, style: int, curve: Curve, over: Literal["rounds", "bytes"]) -> dict[str, Any]:
    if over == "bytes" and not curve.sends:
        return {
            "name": f"{name} (sends nothing: last value)",
            "style": style,
            "x": [0.0],
            "y": curve.mean[-1:],
            "level": True,
        }
    x: Sequence[float] = curve.rounds if over == "rounds" else curve.bytes
    line: dict[str, Any] = {"name": name, "style": style, "x": list(x), "y": curve.mean}
    if curve.n > 1:
        line["sd"] = curve.sd
        line["low"] = [mean - sd for mean, sd in zip(curve.mean, curve.sd, strict=True)]
        line["high"] = [mean + sd for mean, sd in zip(curve.mean, curve.sd, strict=True)]
    return line


def forest(results: Results, cells: Sequence[Cell]) -> Chart | None:
    """Differences to the baseline with intervals; None if no pair is done."""
    lanes = []
    for cell in cells:
        found = results.against_baseline(cell)
        if found is None or found.n == 0:
            continue
        factor = cell.measure.factor
        lane: dict[str, Any] = {
            "label": cell.row,
            "text": difference(found, cell.measure),
            "style": results.study.rows.index(cell.row),
            "mean": found.mean * factor,
        }
        if not isnan(found.low):
            lane["interval"] = [found.low * factor, found.high * factor]
        lanes.append(lane)
    if not lanes:
        return None
    measures = "; ".join(dict.fromkeys(str(cell.measure) for cell in cells))
    return {"kind": "lanes", "zero": True, "x": f"difference: {measures}", "lanes": lanes}


def client_lanes(results: Results, cells: Sequence[Cell]) -> Chart | None:
    """Every client of every run in the end; None if nothing is measured of clients."""
    lanes = []
    for cell in cells:
        points = points_of(results, cell)
        if not points:
            continue
        values = [point.value for point in points]
        named = []
        for point in points:
            name = f"client {point.client}, {point.seeds.name.replace('_', ' ')}"
            named.append({"name": name, "value": point.value})
        quartiles = [float(value) for value in np.percentile(values, (25, 50, 75))]
        style = results.study.rows.index(cell.row)
        text = f"median {quartiles[1]:.4g}"
        lanes.append({"label": cell.row, "text": text, "style": style, "points": named, "box": quartiles})
    if not lanes:
        return None
    label = "; ".join(dict.fromkeys(metric_label(cell.measure) for cell in cells))
    return {"kind": "lanes", "x": label, "lanes": lanes}


def target_bars(results: Results, cells: Sequence[Cell]) -> Chart | None:
    """Rounds to the target; None without one."""
    lanes = []
    for cell in cells:
        if cell.measure.target is None:
            continue
        came, done = reached(results, cell)
        points = []
        for seeds, rounds in rounds_to_target(results, cell).items():
            if not isnan(rounds):
                points.append({"name": seeds.name.replace("_", " "), "value": rounds})
        mean = float(np.mean([point["value"] for point in points])) if points else None
        text = "not reached" if mean is None else f"{mean:.1f} rounds"
        text += f" ({came} of {done} runs)"
        style = results.study.rows.index(cell.row)
        lanes.append({"label": cell.row, "text": text, "style": style, "mean": mean, "points": points})
    if not lanes:
        return None
    targets = " or ".join(f"{target:g}" for target in targets_of(cells))
    label = f"rounds until {cells[0].measure.metric} is {targets}"
    return {"kind": "lanes", "bars": True, "whole": True, "x": label, "lanes": lanes}
