"""The charts of a page as data; page.js draws them.

Kinds: `lines` (over rounds or bytes), `lanes` (a lane for each row: dots and a box, an interval, or a bar) and `heat`
(clients x classes, in run_charts.py). A style is the number of a row: its colour, dashes and marker.
"""

from collections.abc import Sequence
from math import isnan
from typing import Any, Literal

import numpy as np

from fedlit.studies.grids import reached, targets_of
from fedlit.studies.results import Results
from fedlit.studies.run_charts import Chart
from fedlit.studies.series import Curve, curve_of, points_of, rounds_to_target
from fedlit.studies.study import Cell
from fedlit.studies.wording import difference, metric_label, steps


def curves(results: Results, cells: Sequence[Cell], over: Literal["rounds", "bytes"]) -> Chart:
    """The metric over rounds or bytes, a line for each row with a band of its standard deviation."""
    series = []
    if over == "bytes":
        cells = [cell for cell in cells if cell.measure.is_by_round]  # at home nothing is sent
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
    """What rows have over the baseline, with intervals; None if no pair is done."""
    lanes = []
    for cell in cells:
        found = results.against_baseline(cell)
        if found is None or found.n == 0:
            continue
        factor = cell.measure.factor
        lane: dict[str, Any] = {
            "label": cell.row,
            "told": difference(found, cell.measure),
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
        told = f"median {quartiles[1]:.4g}"
        lanes.append({"label": cell.row, "told": told, "style": style, "points": named, "box": quartiles})
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
        told = "not reached" if mean is None else f"{mean:.1f} rounds"
        told += f" ({came} of {done} runs)"
        style = results.study.rows.index(cell.row)
        lanes.append({"label": cell.row, "told": told, "style": style, "mean": mean, "points": points})
    if not lanes:
        return None
    targets = " or ".join(f"{target:g}" for target in targets_of(cells))
    label = f"rounds until {cells[0].measure.metric} is {targets}"
    return {"kind": "lanes", "bars": True, "whole": True, "x": label, "lanes": lanes}
