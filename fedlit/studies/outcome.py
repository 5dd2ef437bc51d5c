"""The records of a run, read from its folder: every number of a study comes from these files."""

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedlit.records.reading import cut_off, read_events, read_table
from fedlit.records.rows import CONVERGENCE, POOLED, EpochRow, LedgerRow, Row
from fedlit.strict_yaml import read_yaml
from fedlit.studies.measure import KEY, Direction, Measure

OF_LEDGER = {"round": "int64", "client": "int64", "direction": "str", "kind": "str", "bytes": "int64"}
OPTIONS = ("model", "data", "trainer")  # of config.yaml, each by name


@dataclass(frozen=True)
class Outcome:
    """The records of one run."""

    folder: Path
    _tables: dict[tuple[Any, ...], pd.DataFrame] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.csv."""
        return self._read("metrics.csv", Row._fields)

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """epochs.csv of the last round that has any, as metrics.csv is, with epochs for rounds."""
        rows = self._read("epochs.csv", EpochRow._fields)
        last = rows[rows["round"] == rows["round"].max()]
        return last.drop(columns="round").rename(columns={"epoch": "round"})

    @cached_property
    def newcomers(self) -> pd.DataFrame:
        """adapt.csv, as metrics.csv is, with epochs for rounds."""
        return self._read("adapt.csv", Row._fields)

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """ledger.csv: what each client sent and received."""
        return read_table(self.folder / "ledger.csv", LedgerRow._fields, OF_LEDGER)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """events.jsonl, without half a line that a kill may have left."""
        return read_events(self.folder / "events.jsonl")

    @cached_property
    def config(self) -> dict[str, Any]:
        """Every option of the run; empty where it was started from Python."""
        path = self.folder / "config.yaml"
        if not path.exists():
            return {}
        content = read_yaml(path, str(path))
        parts = [content, *(content.get(name, {}) for name in OPTIONS if isinstance(content, dict))]
        for part in parts:
            if not isinstance(part, dict):
                raise ValueError(f"{path} must hold the options of a run by name, got {part!r}.")
        return content

    @cached_property
    def half_lines(self) -> str:
        """A sentence on records that end in half a line, as those of a killed run may; empty if all are whole."""
        names = " and of ".join(cut_off(self.folder))
        return f"{self.folder}: the last line of {names} is not whole, and was left out." if names else ""

    def check(self) -> None:
        """Read the records that a study shows, so that a file that is not as a run writes it is refused by name."""
        for name in ("metrics", "ledger", "rounds", "config"):
            getattr(self, name)  # reads it

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, processor and threads of the last start."""
        return next((event for event in reversed(self.events) if event["event"] == "fit"), {})

    @property
    def directions(self) -> dict[str, Direction]:
        """What was measured of every model, the most important first, and whether it is to rise (`max`) or fall."""
        measures = self.environment.get("measures", {"acc": "max", "loss": "min"})  # before 0.2 there was nothing else
        return {**measures, CONVERGENCE: "min"}

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Seconds of every round, by its number; a round that was run again counts as it was last."""
        rounds = {event["round"]: event["seconds"] for event in self.events if event["event"] == "round"}
        return pd.DataFrame({"seconds": pd.Series(rounds, dtype=float).sort_index()})

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """Who was left out of a round, and why."""
        return [event for event in self.events if event["event"] == "left_out"]

    @property
    def total_bytes(self) -> int:
        """Communication of all clients, up and down."""
        return int(self.ledger["bytes"].sum())

    @property
    def total_seconds(self) -> float:
        """Of all rounds, with their evaluation and records."""
        return float(self.rounds["seconds"].sum())

    def by_client(self, measure: Measure) -> pd.DataFrame:
        """The measured metric: rounds x clients; one column `all` where it is of the pooled test set."""
        key = (measure.metric, measure.over, measure.stage, measure.client)
        if key not in self._tables:  # tables and figures ask again, and it takes long
            rows = self._rows(measure)
            self._tables[key] = rows.pivot_table(index="round", columns="client", values="value", aggfunc="last")
        return self._tables[key]

    def curve(self, measure: Measure) -> pd.Series:
        """The measured metric over rounds, one number each."""
        return over_clients(self.by_client(measure), measure)

    def _rows(self, measure: Measure) -> pd.DataFrame:
        """The lines of metrics.csv, epochs.csv or adapt.csv that are measured."""
        words = KEY.fullmatch(measure.metric)
        assert words is not None  # a Measure is checked
        whole = {"rounds": "metrics"}.get(measure.over, measure.over)
        all_rows: pd.DataFrame = getattr(self, whole)
        rows = all_rows[(all_rows["metric"] == words["metric"]) & (all_rows["data"] == words["data"])]
        if measure.stage is not None:
            rows = rows[rows["stage"] == measure.stage]
        model = words["model"]
        if model == "client":  # what a client would use itself
            model = "personal" if (rows["model"] == "personal").any() else "global"
        rows = rows[rows["model"] == model]
        if measure.client is not None:
            rows = rows[rows["client"] == str(measure.client)]
        if rows.empty:
            client = "" if measure.client is None else f" of client {measure.client}"
            stage = "" if measure.stage is None else f" in stage {measure.stage!r}"
            asked = f"{measure.metric}{client}{stage} was never measured over {measure.over}"
            raise ValueError(f"{self.folder}: {asked}; there are {', '.join(_keys(all_rows))}.")
        return rows

    def keys(self) -> list[str]:
        """Every metric of the run, as metric/model_on_data."""
        return _keys(self.metrics)

    def _read(self, name: str, columns: tuple[str, ...]) -> pd.DataFrame:
        """Rows as a run writes them; `client` is text, as `all` stands for the pooled test set."""
        path = self.folder / name
        remedy = {"epochs.csv": "set `trainer.eval_every_n_epochs`", "adapt.csv": "call `fedlit adapt`"}.get(name)
        if remedy is not None and not path.exists():
            raise ValueError(f"{self.folder} has no {name}; {remedy}.")
        kinds = {column: "int64" if column in ("round", "epoch") else "str" for column in columns[:-1]}
        return read_table(path, columns, kinds)


def _keys(rows: pd.DataFrame) -> list[str]:
    names = rows["metric"] + "/" + rows["model"] + "_on_" + rows["data"]
    return sorted(names.unique())


def over_clients(values: pd.DataFrame, measure: Measure) -> pd.Series:
    """One number a round of the clients' values, rounds x clients."""
    if list(values.columns) == [POOLED] or measure.client is not None:
        return values.iloc[:, 0]
    if measure.over_clients == "spread":
        return values.std(axis=1, ddof=0)
    if measure.over_clients == "worst":
        return values.min(axis=1) if measure.rises else values.max(axis=1)
    if measure.over_clients == "worst_tenth":
        return values.apply(lambda row: worst_tenth(row.dropna(), measure.rises), axis=1)
    return values.mean(axis=1)


def worst_tenth(values: pd.Series, rises: bool = True) -> float:
    """Mean of the worst tenth of the clients, at least one of them.

    Example:
        >>> worst_tenth(pd.Series(range(20))), worst_tenth(pd.Series([0.5, 0.7]))
        (0.5, 0.5)
    """
    number = max(1, round(len(values) / 10))
    return float(values.sort_values(ascending=rises).iloc[:number].mean())


def number_of(outcome: Outcome, measure: Measure) -> float | None:
    """The measured number; None where the target was not reached, and where all values are NaN."""
    curve = outcome.curve(measure).dropna()
    if curve.empty:  # a loss that was never finite
        return None
    if measure.at == "last":
        return float(curve.iloc[-1])
    if measure.at == "best":
        return float(curve.max() if measure.rises else curve.min())
    if measure.at == "median_of_last_ten":
        return float(curve.iloc[-10:].median())
    assert measure.target is not None  # a Measure is checked
    reached = curve[curve >= measure.target] if measure.rises else curve[curve <= measure.target]
    if reached.empty:
        return None
    round = int(reached.index[0])
    if measure.at == "rounds_to_target":
        return float(round)
    if measure.at == "bytes_to_target":
        return float(outcome.ledger.loc[outcome.ledger["round"] <= round, "bytes"].sum())
    return float(outcome.rounds.loc[:round, "seconds"].sum())
