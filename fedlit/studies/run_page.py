"""The page of one run: curves of every client, who holds what, the ledger, events, configuration, environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedlit.records.files import write_whole
from fedlit.studies.grid import Grid
from fedlit.studies.markup import Page, details, grid_table, tag, words_table
from fedlit.studies.outcome import Outcome
from fedlit.studies.run_charts import (
    MOST_CLIENTS,
    by_key,
    class_counts,
    heat,
    ledger_chart,
    metric_chart,
    seconds_chart,
)
from fedlit.studies.wording import size

REPORT = "report.html"
NEEDED = ("metrics.csv", "ledger.csv", "events.jsonl")
MOST_EVENTS = 200
FALLING = "loss"


def write_run_page(folder: Path, path: Path | None = None) -> Path:
    """The page of a run, in its folder unless told otherwise; where it is."""
    path = path or folder / REPORT
    write_whole(path, run_page(Outcome(folder)))
    return path


def run_page(outcome: Outcome) -> str:
    """The whole page, as HTML."""
    config = outcome.config
    method = str(config.get("model", {}).get("class_path", "")).rpartition(".")[2]
    page = Page(method or outcome.folder.name, [str(outcome.folder), _told(outcome)])
    if not outcome.metrics.empty:
        tables = by_key(outcome)
        scores = score_grid(tables, outcome.directions)
        page.section(scores.title, grid_table(scores))
        figures = [page.figure(key, metric_chart(key, values)) for key, values in tables.items()]
        note = "Thick: the mean over clients, with their range; thin: a client."
        page.section("Curves", tag("div", *figures, class_="charts"), tag("p", note, class_="note"))
    _partition(page, outcome)
    _ledger(page, outcome)
    _events(page, outcome)
    if config:
        text = yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
        page.section("Configuration", details("Every option", tag("pre", text)))
    lines = [(name, str(value)) for name, value in outcome.environment.items() if name not in ("event", "round")]
    page.section("Made with", words_table(("", "at the last start"), lines))
    return str(page)


def score_grid(tables: Mapping[str, pd.DataFrame], directions: Mapping[str, str]) -> Grid:
    """The last value of every metric over clients, and the best mean with its round."""
    rows = []
    for key, values in tables.items():
        mean = values.mean(axis=1)
        metric = key.rpartition("/")[0]
        falls = directions.get(metric, "min" if FALLING in metric else "max") == "min"
        last = values.iloc[-1]
        numbers = [f"{number:.4f}" for number in (mean.iloc[-1], last.min(), last.max())]
        if mean.notna().any():
            best = mean.idxmin() if falls else mean.idxmax()
            numbers += [f"{mean[best]:.4f}", str(best)]
        else:  # it was never finite
            numbers += ["", ""]
        rows.append((key, *numbers))
    head = ("", "last mean", "least", "most", "best mean", "its round")
    return Grid("Scores", head, tuple(rows), "Mean, least and most over clients in the last round that was measured.")


def _told(outcome: Outcome) -> str:
    """How far the run has come."""
    done = 0 if outcome.rounds.empty else int(outcome.rounds.index[-1])
    planned = outcome.environment.get("rounds")
    told = f"{done} of {planned} rounds are done" if planned else f"{done} rounds are done"
    told += f", in {outcome.total_seconds:.1f} s; {size(outcome.total_bytes)} crossed clients' borders."
    ends = [event for event in outcome.events if event["event"] == "end"]
    if ends and ends[-1].get("stopped_by") is not None:
        told += f" Stopped by signal {ends[-1]['stopped_by']}."
    return told


def _partition(page: Page, outcome: Outcome) -> None:
    if not (outcome.folder / "partition.csv").is_file():
        return
    counts = class_counts(outcome)
    if counts.empty:
        return
    samples = counts.sum(axis=1)
    note = f"{samples.sum()} training samples of {len(counts)} clients, from {samples.min()} to {samples.max()} each"
    if counts.shape[1] > 1:
        note += f"; a client holds {(counts > 0).sum(axis=1).mean():.1f} classes on average"
    note += "."
    if len(counts) > MOST_CLIENTS:
        note += f" The first {MOST_CLIENTS} clients are shown."
    page.section("Who holds what", page.figure("Training samples", heat(counts)), tag("p", note, class_="note"))


def _ledger(page: Page, outcome: Outcome) -> None:
    """Bytes by round, up and down, and by what they were."""
    if outcome.ledger.empty:
        page.section("What was sent", tag("p", "Nothing crossed a client's border."))
        return
    kinds = outcome.ledger.groupby(["direction", "kind"])["bytes"].agg(["sum", "count"])
    rows = []
    for (direction, kind), line in kinds.iterrows():
        rows.append((f"{direction}, {kind}", size(line["sum"]), str(line["count"])))
    grid = Grid("What was sent", ("", "bytes", "times"), tuple(rows))
    chart = ledger_chart(outcome)
    legend = page.legend([line["name"] for line in chart["series"]], "ledger")
    page.section(grid.title, grid_table(grid), page.figure("Bytes by round", chart), legend)


def _events(page: Page, outcome: Outcome) -> None:
    """Whatever happened but rounds, which the seconds tell of."""
    parts = []
    if outcome.half_lines:
        parts.append(tag("p", outcome.half_lines, class_="note"))
    if not outcome.rounds.empty:
        parts.append(page.figure("Seconds by round", seconds_chart(outcome)))
    happened = [event for event in outcome.events if event["event"] != "round"]
    rows = [(str(event.get("time", "")), str(event["event"]), _details(event)) for event in happened[:MOST_EVENTS]]
    parts.append(words_table(("time", "event", "details"), rows))
    if len(happened) > MOST_EVENTS:
        more = f"{len(happened) - MOST_EVENTS} more stand in events.jsonl."
        parts.append(tag("p", more, class_="note"))
    page.section("What happened", *parts)


def _details(event: Mapping[str, Any]) -> str:
    """A start's environment stands elsewhere."""
    told = {name: value for name, value in event.items() if name not in ("time", "event") and value not in (None, "")}
    if event["event"] == "fit":
        told = {name: value for name, value in told.items() if name in ("round", "rounds", "processes", "fast")}
    return ", ".join(f"{name}: {value}" for name, value in told.items())
