"""What stands on the pages of the papers is made of the runs beside them, by a rule that stands there, too."""

import csv
import re
import shlex
import shutil
from dataclasses import replace
from math import nan
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import yaml

from fedlit.cli.compare import parser, split_overrides
from fedlit.studies.measure import Measure
from fedlit.studies.results import RUN_COLUMNS
from fedlit.studies.statistics import Estimate
from fedlit.studies.study import chosen, read_study
from tools.paper_pages.answers import answers
from tools.paper_pages.book import COLUMN, SOURCES, built, figures, methods_of, sources, stale, with_verdicts
from tools.paper_pages.evidence import (
    AGREES,
    DEPENDS,
    DISAGREES,
    NOT_RUN,
    OPEN,
    Finding,
    answering,
    evidence,
    findings,
    has_pairs,
    reading,
    results_of,
    runs_csv,
    verdict,
    verdict_line,
)
from tools.paper_pages.figure import board_figure, figure
from tools.paper_pages.leaderboard import Leaderboard, ahead_and_behind, in_one_line
from tools.paper_pages.source import Question, RunSet, read_source
from tools.paper_pages.take import MADE_ON, merged, take

ROOT = Path(__file__).parents[1]
PAGES = sources(ROOT)
BOARD = Leaderboard.read(ROOT / SOURCES / "leaderboard.yaml")
SETS = [*BOARD.runs, *[runs for page in PAGES for runs in (*page.tuning, *page.runs)]]


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """What pages are made of, and the pages, to be changed."""
    root = tmp_path_factory.mktemp("book")
    for name in ("docs/papers", "configs"):
        shutil.copytree(ROOT / name, root / name)
    for name in ("docs/leaderboard.md", "README.md"):
        shutil.copy(ROOT / name, root / name)
    return root


# --- pages are their runs


def test_every_page_is_what_its_runs_give_byte_for_byte():
    assert stale(ROOT) == []


def test_a_digit_changed_by_hand_in_a_page_is_noticed(copy):
    pages = [f"docs/papers/{page.name}.md" for page in PAGES] + ["docs/leaderboard.md"]
    texts = {page: (copy / page).read_text() for page in pages}
    for page, text in texts.items():
        last = list(re.finditer(r"\d", text))[-1]
        (copy / page).write_text(text[: last.start()] + str(9 - int(last[0])) + text[last.end() :])
    assert sorted(stale(copy)) == sorted(pages)
    for page, text in texts.items():
        (copy / page).write_text(text)  # none is stale then, says the test above


def test_a_verdict_changed_in_the_readme_is_noticed(copy):
    path = copy / "README.md"
    text = path.read_text()
    verdicts = dict(list(csv.reader((copy / "docs/papers/verdicts.csv").read_text().splitlines()))[1:])
    path.write_text(with_verdicts(text, {**verdicts, "FML": "agrees"}))
    assert stale(copy) == ["README.md"]
    path.write_text(text)


def test_the_readme_has_the_verdict_of_every_method():
    readme = (ROOT / "README.md").read_text()
    verdicts = list(csv.DictReader((ROOT / "docs/papers/verdicts.csv").read_text().splitlines()))
    assert [line["method"] for line in verdicts] == methods_of(readme)
    for line in verdicts:
        row = next(row for row in readme.splitlines() if row.startswith(f"| {line['method']} |"))
        told = "–" if "not run" in line["verdict"] else line["verdict"]
        assert row.endswith(f" | {told} |")
    assert f"| {COLUMN} |" in readme


def test_without_runs_a_page_says_so_and_gives_no_verdict(copy, tmp_path):
    shutil.copytree(copy, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / "docs/papers/runs")
    texts = {str(path): text for path, text in built(tmp_path).items()}
    assert "**Verdict: cannot be told: not run.**" in texts["docs/papers/fml.md"]
    assert "Not run yet." in texts["docs/leaderboard.md"]
    assert "FML,cannot be told: not run" in texts["docs/papers/verdicts.csv"]
    assert figures(tmp_path) == {}


def test_figures_of_all_pages_that_have_runs_are_there():
    pages = [ROOT / "docs/leaderboard.md", *(ROOT / f"docs/papers/{page.name}.md" for page in PAGES)]
    shown = set()
    for page in pages:
        shown |= set(re.findall(r"\]\((?:papers/)?(figures/.*?)\)", page.read_text()))
    assert shown == {f"figures/{path.name}" for path in (ROOT / "docs/papers/figures").glob("*")}


def test_a_figure_of_the_leaderboard_has_a_panel_for_each_setting_and_a_line_for_each_method():
    found = {"even": {"A": Estimate(5, 0.5, 0.1, 0.4, 0.6, 0.01), "B": Estimate(1, 0.7, nan, nan, nan, nan)}}
    one = board_figure(found, ["A"])
    two = board_figure({**found, "odd": {"A": Estimate(5, 0.2, 0.1, 0.1, 0.3, 0.01)}}, ["A"])
    assert [one.count(word) for word in (">even<", ">odd<", ">B<")] == [1, 0, 1]
    assert [two.count(word) for word in (">even<", ">odd<", ">B<")] == [1, 1, 1]
    assert board_figure(found, ["A"]) == one


def test_the_readme_s_line_is_bold_where_an_interval_excludes_0(copy):
    lines = in_one_line(BOARD, copy, ["FedAvg", "FedProx", "LocalOnly", "Nobody"])
    assert lines["FedAvg"].startswith("own accuracy: 65.5 Dirichlet(0.1)")
    assert lines["FedProx"].startswith("own accuracy less FedAvg's: +0.1 Dirichlet(0.1)")
    assert lines["LocalOnly"].startswith("own accuracy less FedAvg's: **+22.8** Dirichlet(0.1)")
    assert lines["Nobody"] == NOT_RUN


def test_whose_interval_excludes_0_is_ahead_or_behind(copy):
    _, results = answering(copy, BOARD.runs)
    words = ahead_and_behind(results, "Dirichlet(0.1)", "FedAvg")
    ahead, behind = words.split("; behind: ")
    assert "LocalOnly" in ahead  # +22.80 [+17.79, +27.81]
    assert "FedNova" in behind  # -18.58 [-24.79, -12.36]
    assert "FedProx" not in words  # +0.13 [-1.88, +2.14]
    assert ahead_and_behind(results, "Dirichlet(0.1)", "FedProx") != words


# --- runs of several sittings


def sitting(*statuses: str, cpu: str) -> pd.DataFrame:
    """A study of one cell, with a line for every seed from 1."""
    lines = []
    for seed, status in enumerate(statuses, start=1):
        cell = {"row": "FML", "column": "IID", "training_seed": str(seed), "partition_seed": str(seed)}
        lines.append({**cell, "status": status, "cpu": cpu})
    return pd.DataFrame(lines)


def test_what_an_earlier_sitting_has_done_stays_until_it_is_done_again():
    first = sitting("done", "done", "missing", "failed", "done", "failed", cpu="theirs")
    second = sitting("missing", "done", "done", "missing", cpu="ours")
    both = merged(first, second)
    assert [*both["training_seed"]] == ["1", "2", "3", "4", "5", "6"]
    assert [*both["status"]] == ["done", "done", "done", "missing", "done", "failed"]
    assert [*both["cpu"]] == ["theirs", "ours", "ours", "ours", "theirs", "theirs"]


@pytest.mark.parametrize("called", ["{root}/runs/mine/", "runs/mine/", "../mine/"])
def test_no_path_of_a_machine_is_taken_in(called, monkeypatch, tmp_path):
    study = tmp_path / "runs" / "mine"
    run = study / "runs" / "seed_1"
    run.mkdir(parents=True)
    lines = sitting("done", cpu="ours")
    lines["folder"] = called.format(root=tmp_path) + "runs/seed_1"
    lines.drop(columns="cpu").to_csv(study / "runs.csv", index=False)
    environments = {run: dict.fromkeys(MADE_ON, "known")}
    monkeypatch.setattr("tools.paper_pages.take.Outcome", lambda path: SimpleNamespace(environment=environments[path]))
    take(study, tmp_path / "book")
    taken = pd.read_csv(tmp_path / "book" / "runs.csv")
    assert [*taken["folder"]] == ["studies/book/runs/seed_1"]
    assert [*taken["cpu"]] == ["known"]
    run.rmdir()
    with pytest.raises(ValueError, match=r"has no run .*runs/seed_1"):
        take(study, tmp_path / "book")


def test_the_hours_of_a_set_are_those_of_its_runs_each_counted_once(copy):
    page = next(page for page in PAGES if page.name == "fml")
    lines = pd.read_csv(runs_csv(copy, page.tuning[0]))
    hours = lines[lines["status"] == "done"].groupby("folder")["seconds"].first().sum() / 3600
    text = (copy / "docs/papers/fml.md").read_text()
    row = next(line for line in text.splitlines() if line.startswith(f"| `{page.tuning[0].name}`"))
    assert row.endswith(f"| {hours:.2f} |")


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


def test_where_pairs_are_missing_nothing_can_be_told():
    found = Estimate(4, 0.02, 0.01, 0.01, 0.03, 0.01)
    assert reading(found, ACCURACY, QUESTION, wanted=5) == OPEN
    assert reading(Estimate(0, nan, nan, nan, nan, nan), ROUNDS, QUESTION, wanted=5) == OPEN  # none reached the target


@pytest.mark.parametrize(
    ("readings", "expected"),
    [
        ([AGREES, AGREES, OPEN], AGREES),
        ([AGREES, OPEN], OPEN),
        ([AGREES, AGREES, DISAGREES], DEPENDS),
        ([DISAGREES, DISAGREES, OPEN, NOT_RUN], DISAGREES),
        ([NOT_RUN], NOT_RUN),
    ],
)
def test_one_word_over_several_comparisons(readings, expected):
    assert verdict(readings) == expected


def test_every_claim_has_a_verdict_of_its_own_and_controls_are_answered():
    def finding(brief, kind, word):
        question = replace(QUESTION, brief=brief, kind=kind)
        return Finding(question, "", ACCURACY, Estimate(5, 0.0, 0.0, 0.0, 0.0, 1.0), None, word)

    found = [finding("a", "claim", AGREES), finding("a", "claim", OPEN), finding("b", "claim", DISAGREES)]
    found += [finding("c", "claim", NOT_RUN), finding("d", "control", AGREES), finding("e", "bound", AGREES)]
    assert verdict_line(found) == "a: cannot be told (agrees in 1 of 2); b: disagrees. Controls: d: yes"
    assert verdict_line(found[3:]) == "cannot be told: not run"
    both = [finding("a", "claim", AGREES), finding("a", "claim", DISAGREES), finding("d", "control", OPEN)]
    both += [finding("d", "control", DISAGREES), finding("d", "control", AGREES), finding("d", "control", NOT_RUN)]
    expected = "a: depends (agrees in 1, disagrees in 1 of 2). Controls: d: depends (yes in 1, no in 1 of 3)"
    assert verdict_line(both) == expected


def test_a_question_is_answered_in_the_words_of_its_kind_with_its_numbers_below():
    gain = Estimate(5, 0.02, 0.01, 0.01, 0.03, 0.01)
    control = replace(QUESTION, ask="Does it matter?", kind="control")
    bound = replace(QUESTION, ask="How far is it?", kind="bound")
    found = [
        Finding(QUESTION, "few", ACCURACY, gain, 3.0, AGREES),
        Finding(QUESTION, "many", ACCURACY, gain, None, OPEN),
        Finding(control, "few", ACCURACY, gain, None, AGREES),
        Finding(bound, "few", ACCURACY, gain, None, AGREES),
    ]
    _, claimed, picture, numbers, *rest = answers("toy", found)
    assert claimed.endswith("The least gain that matters is 1. **Cannot be told (agrees in 1 of 2).**")
    assert picture.endswith("(figures/toy_1.svg)")
    assert "| few | +3 | +2.00 [+1.00, +3.00], p = 0.010 (n = 5) | agrees |" in numbers
    assert [block.rpartition(" | ")[2] for block in rest if block.startswith("| where")] == ["yes |", "– |"]
    assert answers("toy", []) == ["Not run yet."]


def test_a_question_of_which_nothing_is_known_has_neither_numbers_nor_a_figure():
    none = Estimate(0, nan, nan, nan, nan, nan)
    assert len(answers("toy", [Finding(QUESTION, "few", ROUNDS, none, None, NOT_RUN)])) == 2
    *_, numbers = answers("toy", [Finding(QUESTION, "few", ROUNDS, none, None, OPEN)])
    assert "| few | – | no pair reached it | cannot be told |" in numbers
    assert not has_pairs([Finding(QUESTION, "few", ROUNDS, none, None, OPEN)])


def test_a_figure_has_a_line_for_each_column_that_was_run_and_says_which_side_is_better():
    gain = Estimate(5, 0.02, 0.01, 0.01, 0.03, 0.01)
    none = Estimate(0, nan, nan, nan, nan, nan)
    group = [
        Finding(QUESTION, "few", ACCURACY, gain, None, AGREES),
        Finding(QUESTION, "many", ACCURACY, none, None, OPEN),
    ]
    drawn = figure(group)
    assert [drawn.count(word) for word in (">few<", ">many<", "right is better", ">paper<")] == [1, 0, 1, 0]
    of_rounds = figure([Finding(QUESTION, "few", ROUNDS, gain, -2.0, AGREES)])
    assert [of_rounds.count(word) for word in ("rounds to the target; left is better", ">paper<")] == [1, 1]


# --- several sets of runs on one page


STUDY = """
recipe: fedavg_fashion.yaml
rows: {A: {}, B: {model.optimizer.lr: 0.1}}
columns: {few: {}, many: {}}
seeds: 2
"""


@pytest.fixture
def sets_of_runs(tmp_path):
    """Writes a study and the runs of some sets of it: rows, columns and the value of all their runs."""

    def write(*sets: tuple[str, str, str, list[str], float]) -> list[RunSet]:
        (tmp_path / "configs").mkdir()
        (tmp_path / "configs/study.yaml").write_text(STUDY)
        found = []
        for name, options, column, rows, value in sets:
            lines = [line for row in rows for line in runs_of(row, column, value)]
            path = tmp_path / "docs/papers/runs" / name / "runs.csv"
            path.parent.mkdir(parents=True)
            pd.DataFrame(lines, columns=list(RUN_COLUMNS)).to_csv(path, index=False)
            found.append(RunSet(name, "study.yaml", options, ""))
        return found

    return write


def runs_of(row: str, column: str, value: float) -> list[dict]:
    """Of both seeds, which are a little apart."""
    cell = {"row": row, "column": column, "status": "done", "folder": "", "left_out": 0}
    return [{**cell, "training_seed": seed, "partition_seed": seed, "value": value + seed / 1000} for seed in (1, 2)]


def test_sets_of_a_study_answer_together_and_the_first_that_has_a_cell_gives_it(sets_of_runs, tmp_path):
    sets = sets_of_runs(
        ("large", "--x 9", "many", ["A", "B"], 0.9),
        ("small", "--only '*' few --x 1", "few", ["A"], 0.2),
        ("more", "--x 1 --only B few", "few", ["B"], 0.5),
        ("again", "--x 1", "few", ["A"], 0.7),
    )
    (piece,) = evidence(tmp_path, sets)
    made_by = {cell: runs.name for cell, runs in piece.made_by.items()}
    assert made_by == {("A", "many"): "large", ("B", "many"): "large", ("A", "few"): "small", ("B", "few"): "more"}
    values = {str(cell): sum(piece.results.values(cell).values()) / 2 for cell in piece.results.study.cells}
    assert values == pytest.approx({"A, few": 0.2015, "A, many": 0.9015, "B, few": 0.5015, "B, many": 0.9015})
    question = replace(QUESTION, row="B", over="A", columns=("few", "many"))
    found = findings(SimpleNamespace(questions=[question]), [piece])
    assert [finding.found.mean for finding in found] == pytest.approx([0.3, 0.0])


def test_rows_of_one_column_that_were_run_at_different_sizes_are_not_compared(sets_of_runs, tmp_path):
    sets = sets_of_runs(("small", "--x 1", "few", ["A"], 0.2), ("large", "--x 9", "few", ["B"], 0.5))
    with pytest.raises(ValueError, match="'few' is of small and, for 'B', of large, which is another size"):
        evidence(tmp_path, sets)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_run_stands_in_a_table(page):
    shown = {(table.study, row, column) for table in page.tables for row in table.rows for column in table.columns}
    for piece in evidence(ROOT, page.runs):
        assert {(piece.study, *cell) for cell in piece.made_by} <= shown


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


def test_the_command_of_one_cell_asks_for_it_alone():
    runs = RunSet("small", "studies/fml.yaml", "--data.root F --only '*' '6*' --trainer.num_rounds 2", "")
    expected = "fedlit compare studies/fml.yaml --data.root F --trainer.num_rounds 2 --only FML '600, pure' --seeds 1"
    assert runs.command_of("FML", "600, pure") == expected


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_rates_were_not_tuned_on_a_seed_that_is_shown(page):
    tuned_on = {pair for runs in page.tuning for pair in read_study(ROOT / "configs" / runs.study).seeds}
    for runs in page.runs:
        seeds = read_study(ROOT / "configs" / runs.study).seeds
        assert len(seeds) >= 5
        assert tuned_on.isdisjoint(seeds)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_questions_and_tables_are_of_cells_that_the_studies_have(page):
    studies = {runs.study: read_study(ROOT / "configs" / runs.study) for runs in page.runs}
    for question in page.questions:
        for column in question.columns:
            for row in (question.row, question.over):
                assert any(study.cell(row, column) for study in studies.values()), (row, column)
    for table in page.tables:
        for column in table.columns:
            assert any(studies[table.study].cell(row, column) for row in table.rows)
        assert set(table.rows) <= set(studies[table.study].rows)


def test_a_folder_of_runs_belongs_to_a_page():
    folders = {path.name for path in (ROOT / "docs/papers/runs").iterdir()}
    assert folders <= {runs.name for runs in SETS}


def test_a_key_that_a_source_lacks_or_has_too_many_is_named(tmp_path):
    content = yaml.safe_load((ROOT / SOURCES / "moe.yaml").read_text())
    path = tmp_path / "moe.yaml"
    path.write_text(yaml.safe_dump({name: value for name, value in content.items() if name != "control"}))
    with pytest.raises(ValueError, match="`control` is missing"):
        read_source(path)
    path.write_text(yaml.safe_dump({**content, "verdict": "agrees"}))
    with pytest.raises(ValueError, match="`verdict` is not known"):
        read_source(path)


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
        row = cell.row.removesuffix(", at home").removesuffix("'s global")
        _, _, said = row.partition(" at ")  # a rate that the row's name says was not picked
        assert cell.options[-1]["model.optimizer.lr"] == (float(said) if said else tuned_rate(results, row))
