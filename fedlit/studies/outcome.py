"""The records of a run, read from its folder: every number of a study comes from these files."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from fedlit.records.reading import cut_off, read_events, read_table
from fedlit.records.rows import CONVERGENCE, POOLED, EpochRow, LedgerRow, Row
from fedlit.strict_yaml import read_yaml
from fedlit.studies.measure import KEY, OF_NEWCOMERS, Direction, Measure

OF_LEDGER = {"round": "int64", "client": "int64", "direction": "str", "kind": "str", "bytes": "int64"}
OPTIONS = ("model", "data", "trainer")  # of config.yaml, each by name
OF_PARTITION = ("client", "split", "label")  # columns of partition.csv that are read


@dataclass(frozen=True)
class Outcome:
    """The records of one run."""

    folder: Path

    @cached_property
    def metrics(self) -> pd.DataFrame:
        """metrics.csv."""
        return _read(self.folder / "metrics.csv", Row._fields)

    @cached_property
    def epochs(self) -> pd.DataFrame:
        """epochs.csv of the last round that has any, as metrics.csv is, with epochs for rounds."""
        path = self.folder / "epochs.csv"
        if not path.exists():
            raise ValueError(f"{self.folder} has no epochs.csv; set `trainer.eval_every_n_epochs`.")
        rows = _read(path, EpochRow._fields)
        last = rows[rows["round"] == rows["round"].max()]
        return last.drop(columns="round").rename(columns={"epoch": "round"})

    @cached_property
    def newcomers(self) -> pd.DataFrame:
        """adapt.csv, as metrics.csv is, with epochs for rounds."""
        path = self.folder / "adapt.csv"
        if not path.exists():
            raise ValueError(f"{self.folder} has no adapt.csv; call `fedlit adapt`.")
        return _read(path, Row._fields)

    @cached_property
    def ledger(self) -> pd.DataFrame:
        """ledger.csv: what crossed a client's border."""
        return read_table(self.folder / "ledger.csv", LedgerRow._fields, OF_LEDGER)

    @cached_property
    def events(self) -> list[dict[str, Any]]:
        """events.jsonl, without half a line that a kill may have left."""
        return read_events(self.folder / "events.jsonl")

    @cached_property
    def partition(self) -> pd.DataFrame:
        """partition.csv: who holds how many samples of which class."""
        path = self.folder / "partition.csv"
        try:
            return pd.read_csv(path, usecols=OF_PARTITION, dtype={"client": "int64", "label": "Int64"})
        except (ValueError, TypeError, OverflowError) as error:
            raise ValueError(f"{path} cannot be read: {error}") from error

    @cached_property
    def config(self) -> dict[str, Any]:
        """Every option of the run; empty where it was started from Python."""
        path = self.folder / "config.yaml"
        if not path.exists():
            return {}
        content = read_yaml(path, str(path))
        parts = [content]
        if isinstance(content, dict):
            parts += [content.get(name, {}) for name in OPTIONS]
        for part in parts:
            if not isinstance(part, dict):
                raise ValueError(f"{path} must hold the options of a run by name, got {part!r}.")
        return content

    @cached_property
    def half_lines(self) -> str:
        """A sentence on records that end in half a line, as those of a killed run may; empty if all are whole."""
        names = cut_off(self.folder)
        if not names:
            return ""
        return f"{self.folder}: the last line of {' and of '.join(names)} is not whole, and was left out."

    def check(self) -> None:
        """Read the records that a study shows, so that what is wrong with them is found.

        Raises:
            ValueError: A file is not as a run writes it; the text names it.
            OSError: A file cannot be read.
        """
        wanted = ["metrics", "ledger", "rounds", "config"]
        wanted += [name for name in ("partition", "epochs") if (self.folder / f"{name}.csv").is_file()]
        for name in wanted:
            getattr(self, name)  # reads it

    @property
    def environment(self) -> dict[str, Any]:
        """Versions, processor and threads of the last start."""
        for event in reversed(self.events):
            if event["event"] == "fit":
                return event
        return {}

    @property
    def directions(self) -> dict[str, Direction]:
        """What was measured of every model, the most important first, and whether it is to rise (`max`) or fall."""
        measures = self.environment.get("measures", {"acc": "max", "loss": "min"})  # before 0.2 there was nothing else
        return {**measures, CONVERGENCE: "min"}

    @cached_property
    def rounds(self) -> pd.DataFrame:
        """Seconds of every round, by its number; a round that was run again counts as it was last."""
        rounds = {}
        for event in self.events:
            if event["event"] == "round":
                rounds[event["round"]] = event["seconds"]
        return pd.DataFrame({"seconds": pd.Series(rounds, dtype=float).sort_index()})

    @property
    def left_out(self) -> list[dict[str, Any]]:
        """Who was left out of a round, and why, and newcomers of whom there is no number."""
        events = [event for event in self.events if event["event"] == "left_out"]
        return [*events, *self._not_joined()]

    def _not_joined(self) -> list[dict[str, Any]]:
        if not (self.folder / "adapt.csv").exists():
            return []
        kept_out = self.config.get("data", {}).get("init_args", {}).get("unseen_clients", 0)
        missing = kept_out - self.newcomers["client"].nunique()
        reason = "could not join, or has no validation samples; see fit.log"
        return [{"client": "a newcomer", "reason": reason, "round": "–"}] * missing

    @property
    def total_bytes(self) -> int:
        """All that crossed clients' borders, up and down."""
        return int(self.ledger["bytes"].sum())

    @property
    def total_seconds(self) -> float:
        """Of all rounds, with their evaluation and records."""
        return float(self.rounds["seconds"].sum())

    def by_client(self, measure: Measure) -> pd.DataFrame:
        """The measured metric: rounds x clients; one column `all` where it is of the pooled test set."""
        key = (measure.metric, measure.over, measure.stage, measure.client)
        if key not in self._tables:
            rows = self._rows(measure)
            self._tables[key] = rows.pivot_table(index="round", columns="client", values="value", aggfunc="last")
        return self._tables[key]

    @cached_property
    def _tables(self) -> dict[tuple[str, str, str | None, int | None], pd.DataFrame]:
        """What `by_client` has made: every table and figure asks for it, and it takes long."""
        return {}

    def curve(self, measure: Measure) -> pd.Series:
        """The measured metric over rounds, one number each."""
        return over_clients(self.by_client(measure), measure)

    def _rows(self, measure: Measure) -> pd.DataFrame:
        """The lines of metrics.csv, epochs.csv or adapt.csv that are measured."""
        words = KEY.fullmatch(measure.metric)
        assert words is not None  # a Measure is checked
        whole = self._whole(measure)
        rows = whole[(whole["metric"] == words["metric"]) & (whole["data"] == words["data"])]
        if measure.stage is not None:
            rows = rows[rows["stage"] == measure.stage]
        rows = rows[rows["model"] == _model(words["model"], rows)]
        if measure.client is not None:
            rows = rows[rows["client"] == str(measure.client)]
        if rows.empty:
            known = ", ".join(_keys(whole))
            raise ValueError(f"{self.folder}: {measure.metric}{_where(measure)} was never measured; there are {known}.")
        return rows

    def _whole(self, measure: Measure) -> pd.DataFrame:
        if measure.over == "newcomers":
            return self.newcomers
        return self.epochs if measure.over == "epochs" else self.metrics

    def keys(self) -> list[str]:
        """Every metric of the run, as metric/model_on_data."""
        return _keys(self.metrics)


def _read(path: Path, columns: tuple[str, ...]) -> pd.DataFrame:
    """Rows as a run writes them; `client` is text, as `all` stands for the pooled test set."""
    kinds = {name: "int64" if name in ("round", "epoch") else "str" for name in columns[:-1]}
    return read_table(path, columns, kinds)


def _where(measure: Measure) -> str:
    """What else was asked for than a metric."""
    words = ""
    if measure.client is not None:
        words += f" of client {measure.client}"
    if measure.stage is not None:
        words += f" in stage {measure.stage!r}"
    if OF_NEWCOMERS.search(measure.metric) and measure.over == "rounds":
        words += " by rounds (`over: newcomers` is by their epochs)"
    return words


def _keys(rows: pd.DataFrame) -> list[str]:
    names = rows["metric"] + "/" + rows["model"] + "_on_" + rows["data"]
    return sorted(names.unique())


def _model(wanted: str, rows: pd.DataFrame) -> str:
    """The model `client` is what a client would use itself."""
    if wanted != "client":
        return wanted
    if (rows["model"] == "personal").any():
        return "personal"
    return "global"


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
        >>> worst_tenth(pd.Series(range(20)))
        0.5
        >>> worst_tenth(pd.Series([0.5, 0.7]))
        0.5
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
    return _to_target(outcome, measure, curve)


def round_of_target(curve: pd.Series, target: float, rises: bool) -> int | None:
    """The first round in which the target is reached.

    Example:
        >>> round_of_target(pd.Series({1: 0.5, 2: 0.8, 3: 0.7}), 0.75, True)
        2
        >>> round_of_target(pd.Series({1: 0.5, 2: 0.8}), 0.9, True) is None
        True
    """
    reached = curve[curve >= target] if rises else curve[curve <= target]
    if reached.empty:
        return None
    return int(reached.index[0])


def _to_target(outcome: Outcome, measure: Measure, curve: pd.Series) -> float | None:
    assert measure.target is not None  # a Measure is checked
    round = round_of_target(curve, measure.target, measure.rises)
    if round is None:
        return None
    if measure.at == "rounds_to_target":
        return float(round)
    if measure.at == "bytes_to_target":
        return float(outcome.ledger.loc[outcome.ledger["round"] <= round, "bytes"].sum())
    return float(outcome.rounds.loc[:round, "seconds"].sum())
