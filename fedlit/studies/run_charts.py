"""The charts of one run as data, from its records alone; page.js draws them."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from fedlit.records.rows import POOLED, mean_of
from fedlit.studies.outcome import Outcome

Chart = Mapping[str, Any]
MOST_CLIENTS = 60  # in a heat map
MOST_POINTS = 20_000  # of clients in one chart: fewer lines where there are many rounds
MOST_LINES = 100
ROUNDS = {"kind": "lines", "x": "round", "xname": "round", "unit": "rounds"}


def by_key(outcome: Outcome) -> dict[str, pd.DataFrame]:
    """Every metric of a run, rounds x clients, by metric/model_on_data; accuracies first, losses then."""
    rows = outcome.metrics
    names = rows["metric"] + "/" + rows["model"] + "_on_" + rows["data"]
    tables = {}
    for key in sorted(names.unique(), key=_order):
        lines = rows[names == key].drop_duplicates(["round", "client"], keep="last")
        table = lines.pivot(index="round", columns="client", values="value")
        tables[key] = table[sorted(table.columns, key=_client_order)]
    return tables


def _order(key: str) -> tuple[int, str]:
    kinds = ("acc/", "loss/")
    first = next((i for i, kind in enumerate(kinds) if key.startswith(kind)), len(kinds))
    return first, key


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
    """Training samples of every client: clients x classes."""
    partition = outcome.partition
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
