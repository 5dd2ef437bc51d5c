"""What stands on the pages of the papers is made of the runs beside them, by a rule that stands there, too."""

import csv
import shlex
from pathlib import Path

import pandas as pd
import pytest

from fedlit import methods
from fedlit.cli.compare import parser, split_overrides
from fedlit.cli.methods import methods_of
from fedlit.studies.measure import Measure
from fedlit.studies.results import Estimate
from fedlit.studies.study import chosen, read_study
from tools.paper_pages.book import SOURCES, sources, stale
from tools.paper_pages.evidence import (
    AGREES,
    DISAGREES,
    OPEN,
    reading,
    results_of,
    runs_csv,
)
from tools.paper_pages.leaderboard import Leaderboard
from tools.paper_pages.source import Question

ROOT = Path(__file__).parents[1]
PAGES = sources(ROOT)
BOARD = Leaderboard.read(ROOT / SOURCES / "leaderboard.yaml")
SETS = [*BOARD.runs, *[runs for page in PAGES for runs in (*page.tuning, *page.runs)]]


# --- pages are their runs


def test_every_page_is_what_its_runs_give_byte_for_byte():
    assert stale(ROOT) == []


def test_every_method_has_a_verdict():
    verdicts = list(csv.DictReader((ROOT / "docs/papers/verdicts.csv").read_text().splitlines()))
    assert [line["method"] for line in verdicts] == [method.__name__ for method in methods_of(methods)]
    assert all(line["verdict"] for line in verdicts)


# --- the rule, by hand

QUESTION = Question("Is it ahead?", "ahead", "claim", "a", "b", ("",), least=1.0)
ACCURACY = Measure.read({"metric": "acc/global_on_pooled"})
ROUNDS = Measure.read({"metric": "acc/global_on_pooled", "at": "rounds_to_target", "target": 0.9})


@pytest.mark.parametrize(
    ("measure", "low", "high", "expected"),
    [
        (ACCURACY, 0.001, 0.03, AGREES),
        (ACCURACY, 0.001, 0.005, AGREES),
        (ACCURACY, -0.03, 0.009, DISAGREES),
        (ACCURACY, -0.03, -0.01, DISAGREES),
        (ACCURACY, -0.03, 0.011, OPEN),
        (ROUNDS, -5.0, -0.5, AGREES),  # fewer rounds are better
        (ROUNDS, -0.9, 3.0, DISAGREES),
        (ROUNDS, -1.1, 3.0, OPEN),
    ],
)
def test_an_interval_is_read_by_the_rule(measure, low, high, expected):
    found = Estimate(5, (low + high) / 2, 0.1, low, high, 0.5)
    assert reading(found, measure, QUESTION, wanted=5) == expected


# --- sources and settings


@pytest.mark.parametrize("runs", SETS, ids=lambda runs: runs.name)
def test_what_was_run_is_what_its_command_asks_for(runs):
    typed, _ = split_overrides(shlex.split(runs.command)[2:])
    given = parser().parse_args(typed)
    study = chosen(read_study(ROOT / "configs" / given.files[0]), given.only)
    path = runs_csv(ROOT, runs)
    if path.is_file():
        lines = pd.read_csv(path, keep_default_na=False)
        assert set(zip(lines["row"], lines["column"], strict=True)) == {(cell.row, cell.column) for cell in study.cells}
        assert not lines["folder"].str.startswith("/").any()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rates_were_not_tuned_on_a_seed_that_is_shown(page):
    tuned_on = {pair for runs in page.tuning for pair in read_study(ROOT / "configs" / runs.study).seeds}
    for runs in page.runs:
        seeds = read_study(ROOT / "configs" / runs.study).seeds
        assert len(seeds) >= 5
        assert tuned_on.isdisjoint(seeds)


def test_a_folder_of_runs_belongs_to_a_page():
    folders = {path.name for path in (ROOT / "docs/papers/runs").iterdir()}
    assert folders <= {runs.name for runs in SETS}


# --- rates by the rule of the tuning


def tuned_rate(results, row: str) -> float:
    """The rate of the highest number among a row's own and those of its strengths; the smaller of equal ones."""
    found = []
    for cell in results.study.cells:
        values = results.values(cell)
        is_its = cell.row == row or cell.row.startswith((f"{row}, mu ", f"{row} ("))
        if is_its and values:
            rate = float(cell.column.rpartition("lr ")[2])
            found.append((next(iter(values.values())), -rate))
    return -max(found)[1]


TUNED = [runs for page in PAGES for runs in page.tuning if runs_csv(ROOT, runs).is_file()]


@pytest.mark.parametrize("tuning", TUNED, ids=lambda runs: runs.name)
def test_a_study_has_the_rates_that_its_tuning_picked(tuning):
    results = results_of(ROOT, tuning)
    for cell in read_study(ROOT / "configs" / tuning.tunes).cells:
        row = cell.row.removesuffix(", own data").removesuffix("'s global")
        _, _, said = row.partition(" at ")  # a rate that the row's name says was not picked
        assert cell.options[-1]["model.optimizer.lr"] == (float(said) if said else tuned_rate(results, row))
