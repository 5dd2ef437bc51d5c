"""The page of one run: curves of every client, partition, ledger, events, configuration, environment."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from fedlit.records.files import write_whole
from fedlit.records.rows import POOLED, mean_of
from fedlit.studies.markup import Page, details, grid_table, tag, words_table
from fedlit.studies.outcome import Outcome
from fedlit.studies.wording import Grid, size

REPORT = "report.html"
NEEDED = ("metrics.csv", "ledger.csv", "events.jsonl")
MOST_EVENTS = 200
FALLING = "loss"
Chart = Mapping[str, Any]
MOST_CLIENTS = 60  # in a heat map
MOST_POINTS = 20_000  # of clients in one chart: fewer lines where there are many rounds
MOST_LINES = 100
ROUNDS = {"kind": "lines", "x": "round", "xname": "round", "unit": "rounds"}


def write_run_page(folder: Path, path: Path | None = None) -> Path:
    """Write the page of a run, by default into its folder; returns its path."""
    path = path or folder / REPORT
    write_whole(path, run_page(Outcome(folder)))
    return path


def run_page(outcome: Outcome) -> str:
    """The whole page, as HTML."""
    config = outcome.config
    method = str(config.get("model", {}).get("class_path", "")).rpartition(".")[2]
    page = Page(method or outcome.folder.name, [str(outcome.folder), _describe_progress(outcome)])
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


def _describe_progress(outcome: Outcome) -> str:
    """How far the run has come."""
    done = 0 if outcome.rounds.empty else int(outcome.rounds.index[-1])
    planned = outcome.environment.get("rounds")
    text = f"{done} of {planned} rounds are done" if planned else f"{done} rounds are done"
    text += f", in {outcome.total_seconds:.1f} s; {size(outcome.total_bytes)} crossed clients' borders."
    ends = [event for event in outcome.events if event["event"] == "end"]
    if ends and ends[-1].get("stopped_by") is not None:
        text += f" Stopped by signal {ends[-1]['stopped_by']}."
    return text


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
    """Seconds of every round, and all other events."""
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
    shown = {name: value for name, value in event.items() if name not in ("time", "event") and value not in (None, "")}
    if event["event"] == "fit":
        shown = {name: value for name, value in shown.items() if name in ("round", "rounds", "processes", "fast")}
    return ", ".join(f"{name}: {value}" for name, value in shown.items())


def by_key(outcome: Outcome) -> dict[str, pd.DataFrame]:
    """Every metric of a run, rounds x clients, by metric/model_on_data; what the task measures first."""
    rows = outcome.metrics
    names = rows["metric"] + "/" + rows["model"] + "_on_" + rows["data"]
    tables = {}
    kinds = list(outcome.directions)
    for key in sorted(names.unique(), key=lambda key: _order(key, kinds)):
        lines = rows[names == key].drop_duplicates(["round", "client"], keep="last")
        table = lines.pivot(index="round", columns="client", values="value")
        tables[key] = table[sorted(table.columns, key=_client_order)]
    return tables


def _order(key: str, kinds: list[str]) -> tuple[int, str]:
    metric = key.rpartition("/")[0]
    return kinds.index(metric) if metric in kinds else len(kinds), key


def _client_order(client: str) -> tuple[int, str]:
    return (int(client), "") if client.isdigit() else (-1, client)


def metric_chart(key: str, values: pd.DataFrame) -> Chart:
    """A metric, rounds x clients: clients thin, their mean thick with a band from the least to the most."""
    series: list[dict[str, Any]] = []
    shown = list(values.columns)[: min(MOST_LINES, max(1, MOST_POINTS // len(values)))]
    if len(values.columns) > 1:
        for client in shown:
            line = values[client].dropna()
            series.append({"name": f"client {client}", "style": -1, "thin": True, **_points(line)})
    mean = values.mean(axis=1)
    name = "test set"
    if list(values.columns) != [POOLED]:
        name = mean_of(values.count(axis=1), len(values.columns))
    series.append({"name": name, "style": 0, **_points(mean)})
    if len(values.columns) > 1:
        series[-1] |= {"low": values.min(axis=1).to_list(), "high": values.max(axis=1).to_list()}
    return {**ROUNDS, "y": key.rpartition("/")[0], "series": series}


def _points(line: pd.Series) -> dict[str, list[Any]]:
    return {"x": [int(round) for round in line.index], "y": [float(value) for value in line]}


def ledger_chart(outcome: Outcome) -> Chart:
    """Bytes of all clients in each round, up and down."""
    by_round = outcome.ledger.pivot_table(index="round", columns="direction", values="bytes", aggfunc="sum")
    series = []
    for style, direction in enumerate(sorted(by_round.columns)):
        points = _points(by_round[direction].fillna(0))
        series.append({"name": direction, "style": style, **points})
    return {**ROUNDS, "group": "ledger", "y": "bytes of all clients", "yunit": "bytes", "floor": 0, "series": series}


def seconds_chart(outcome: Outcome) -> Chart:
    """Seconds of each round."""
    line = {"name": "seconds", "style": 0, **_points(outcome.rounds["seconds"])}
    return {**ROUNDS, "y": "seconds", "floor": 0, "series": [line]}


def class_counts(outcome: Outcome) -> pd.DataFrame:
    """Training samples of every client: clients x classes, or one column where samples have no class."""
    partition = outcome.partition
    if partition["label"].isna().any():
        partition = partition.assign(label=0)
    train = partition[partition["split"] == "train"]
    counts = train.groupby(["client", "label"]).size().unstack(fill_value=0)
    everybody = range(int(partition["client"].max()) + 1) if len(partition) else range(0)
    classes = range(int(partition["label"].max()) + 1) if len(partition) else range(0)
    return counts.reindex(index=everybody, columns=classes, fill_value=0)


def heat(counts: pd.DataFrame) -> Chart:
    """Who holds what, clients x classes; of many clients, the first."""
    shown = counts.iloc[:MOST_CLIENTS]
    return {
        "kind": "heat",
        "clients": [str(client) for client in shown.index],
        "classes": [str(label) for label in shown.columns],
        "counts": shown.to_numpy().tolist(),
    }
