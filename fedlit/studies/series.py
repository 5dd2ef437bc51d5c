"""What a study's figures show, from the records of its runs: curves, clients in the end, runs that reach a target."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import nan

import numpy as np
import pandas as pd

from fedlit.studies.outcome import Outcome
from fedlit.studies.results import Results, client_values
from fedlit.studies.study import Cell, SeedPair
from fedlit.studies.wording import metric_factor


@dataclass(frozen=True)
class Curve:
    """A cell's metric over rounds, as it is shown: mean and standard deviation over its runs.

    Attributes:
        rounds: Those that all runs of the cell have.
        bytes: All that crossed clients' borders up to each round, the mean over runs.
        mean: Of the metric, in per cent where it is shown so.
        sd: With n - 1; nan where there is one run.
        n: Runs.
    """

    rounds: list[int]
    bytes: list[float]
    mean: list[float]
    sd: list[float]
    n: int

    @property
    def sends(self) -> bool:
        """Whether anything crosses a client's border."""
        return bool(self.bytes) and self.bytes[-1] > 0


@dataclass(frozen=True)
class ClientPoint:
    """One client of one run in the end."""

    seeds: SeedPair
    client: str
    value: float


def outcomes_of(results: Results, cell: Cell) -> Iterator[tuple[SeedPair, Outcome]]:
    """The runs of a cell that are done, in the order of the study's seeds."""
    for seeds in results.study.seeds:
        if (cell, seeds) in results.outcomes:
            yield seeds, results.outcomes[cell, seeds]


def curve_of(results: Results, cell: Cell) -> Curve | None:
    """The curve of a cell; None if no run is done."""
    values = []
    sent = []
    for _, outcome in outcomes_of(results, cell):
        curve = outcome.curve(cell.measure).dropna()
        values.append(curve)
        sent.append(bytes_up_to(outcome, curve.index))
    if not values:
        return None
    over_runs = pd.concat(values, axis=1, join="inner") * metric_factor(cell.measure)
    bytes_over_runs = pd.concat(sent, axis=1, join="inner")
    return Curve(
        rounds=[int(round) for round in over_runs.index],
        bytes=bytes_over_runs.mean(axis=1).to_list(),
        mean=over_runs.mean(axis=1).to_list(),
        sd=over_runs.std(axis=1, ddof=1).to_list(),
        n=len(values),
    )


def bytes_up_to(outcome: Outcome, rounds: pd.Index) -> pd.Series:
    """All bytes up to and with each of some rounds; a round without communication adds nothing."""
    by_round = outcome.ledger.groupby("round")["bytes"].sum().sort_index()
    total = np.concatenate([[0.0], by_round.cumsum().to_numpy(dtype=float)])
    position = np.searchsorted(by_round.index.to_numpy(dtype=int), rounds.to_numpy(dtype=int), side="right")
    return pd.Series(total[position], index=rounds)


def points_of(results: Results, cell: Cell) -> list[ClientPoint]:
    """Every client of every run of a cell in the end; none if the metric is not of clients."""
    points = []
    for seeds, outcome in outcomes_of(results, cell):
        values = client_values(outcome, cell.measure)
        if values is None:
            continue
        for client, value in values.items():
            points.append(ClientPoint(seeds, str(client), float(value) * metric_factor(cell.measure)))
    return points


def rounds_to_target(results: Results, cell: Cell) -> dict[SeedPair, float]:
    """Rounds to the target, of every run that is done; nan where it was not reached."""
    found = {}
    for _, run in results.done_runs_of(cell).iterrows():
        rounds = run["rounds_to_target"]
        seeds = SeedPair(int(run["training_seed"]), int(run["partition_seed"]))
        found[seeds] = nan if pd.isna(rounds) else float(rounds)
    return found
