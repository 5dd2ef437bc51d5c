"""Every number of a study's page and figures is recomputed from the files of its runs, by other means."""

import csv
from collections import defaultdict
from statistics import mean, stdev

import pytest
from read_page import PageReader
from scipy import stats
from toy_runs import ENVIRONMENT, steady, study_of

from fedlit.studies.charts import draw_all
from fedlit.studies.pages import study_page
from fedlit.studies.results import Results

ROWS = {"FedAvg": {}, "FML": {}, "alone": {}}
COLUMNS = {"IID": {}, "two classes": {}}
LAST = {"FedAvg": 0.5, "FML": 0.62, "alone": 0.55}
WOBBLE = {  # over seeds
    "IID": {"FedAvg": 0.013, "FML": 0.014, "alone": 0.012},
    "two classes": {"FedAvg": 0.026, "FML": 0.0, "alone": 0.013},
}
CONTENT = {"title": "A study", "rows": ROWS, "columns": COLUMNS, "seeds": 3, "measure": {"target": 0.45}}


def run_of(row, column, seeds):
    wobble = WOBBLE[column][row] * seeds.training * (-1) ** seeds.training
    last = LAST[row] + wobble - 0.1 * (column == "two classes")
    values = steady(last - 0.1, last, last + 0.07 * seeds.training, rounds=4)
    left_out = ()
    if (row, column, seeds.training) == ("FML", "IID", 2):
        left_out = ((3, 1, "its loss is not finite"),)
    method = "LocalOnly" if row == "alone" else row
    sent = {"FedAvg": 1000, "FML": 3000, "alone": 0}[row]
    return {"values": values, "method": method, "bytes_up": sent, "left_out": left_out}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return study_of(tmp_path_factory.mktemp("runs"), CONTENT, run_of)


@pytest.fixture(scope="module")
def page(results):
    return PageReader(study_page(results, [], "fedlit compare study.yaml --seeds 3"))


def lines(outcome, name):
    with (outcome.folder / name).open() as file:
        return list(csv.DictReader(file))


def accuracies(outcome) -> dict[int, list[float]]:
    """By round, the clients' accuracy."""
    found = defaultdict(list)
    for line in lines(outcome, "metrics.csv"):
        if line["metric"] == "acc":
            found[int(line["round"])].append(float(line["value"]))
    return found


def bytes_until(outcome, round: int) -> int:
    return sum(int(line["bytes"]) for line in lines(outcome, "ledger.csv") if int(line["round"]) <= round)


def outcomes(results, row, column):
    return [results.outcomes[results.study.cell(row, column), seeds] for seeds in results.study.seeds]


def values(results, row, column) -> list[float]:
    return [100 * mean(accuracies(outcome)[4]) for outcome in outcomes(results, row, column)]


def lines_of(figure, column) -> dict[str, tuple[list[float], list[float]]]:
    """By row, the points of its line in the panel of a column."""
    axes = next(axes for axes in figure.axes if axes.get_title() == column)
    found = {line.get_label(): tuple(map(list, line.get_data())) for line in axes.lines}
    bands = [band.get_datalim(axes.transData) for band in axes.collections]
    return found, bands


@pytest.fixture(scope="module")
def figures(results):
    return dict(draw_all(results))


@pytest.mark.parametrize("column", COLUMNS)
def test_curves_over_rounds_are_means_of_metrics_csv_with_their_deviation(figures, results, column):
    found, bands = lines_of(figures["curves_over_rounds"], column)
    assert list(found) == list(ROWS)
    for (row, (x, y)), band in zip(found.items(), bands, strict=True):
        assert x == [1, 2, 3, 4]
        runs = [[100 * mean(accuracies(outcome)[n]) for outcome in outcomes(results, row, column)] for n in x]
        assert y == pytest.approx([mean(values) for values in runs])
        assert band.ymin == pytest.approx(min(mean(values) - stdev(values) for values in runs))
        assert band.ymax == pytest.approx(max(mean(values) + stdev(values) for values in runs))


@pytest.mark.parametrize("column", COLUMNS)
def test_curves_over_bytes_are_sums_of_ledger_csv(figures, results, column):
    found, _ = lines_of(figures["curves_over_bytes"], column)
    over_rounds, _ = lines_of(figures["curves_over_rounds"], column)
    for row in ("FedAvg", "FML"):
        of_runs = outcomes(results, row, column)
        sent = [mean(bytes_until(outcome, n) for outcome in of_runs) / 1000 for n in (1, 2, 3, 4)]  # kB
        assert found[row] == (pytest.approx(sent), over_rounds[row][1])
    assert found["alone (no communication: last value)"][1] == [over_rounds["alone"][1][-1]] * 2


def test_the_table_has_means_and_deviations_of_the_last_round(page, results):
    table = page.table("", "IID", "two classes")
    for row in ROWS:
        for column, cell in zip(COLUMNS, table[row], strict=True):
            runs = values(results, row, column)
            assert cell == f"{mean(runs):.2f} ± {stdev(runs):.2f}"


def test_differences_are_those_of_scipys_paired_test(page, results):
    tables = [table for table in page.tables if table[0] == ["", "IID", "two classes"]]
    shown = {row[0]: row[1:] for row in tables[1][1:]}
    assert list(shown) == ["FML", "alone"]
    for row, texts in shown.items():
        for column, text in zip(COLUMNS, texts, strict=True):
            ours, theirs = values(results, row, column), values(results, "FedAvg", column)
            test = stats.ttest_rel(ours, theirs)
            low, high = test.confidence_interval(0.95)
            assert text.startswith(f"{mean(ours) - mean(theirs):+.2f} [{low:+.2f}, {high:+.2f}]")
            assert text.endswith("p < 0.001" if test.pvalue < 0.001 else f"p = {test.pvalue:.3f}")


def test_the_page_says_how_it_was_made(page):
    assert "fedlit compare study.yaml --seeds 3" in page.text
    assert "training 2, partition 2" in page.text
    made_with = page.table("", "fedlit", "torch")["18 runs"]
    assert made_with[:6] == [str(value) for value in ENVIRONMENT.values()]


def test_the_page_asks_no_network_for_anything(page):
    assert page.addresses == []
    assert "link" not in page.tags


def test_names_of_users_are_text_and_never_markup(tmp_path):
    nasty = "</script><img src=x onerror=alert(1)> & \"quoted\" 'name'"
    content = {"title": nasty, "note": nasty, "source": nasty, "rows": {nasty: {}, "b": {}}, "columns": {nasty: {}}}
    results = study_of(tmp_path, content, lambda *_: {"values": steady(0.5, 0.6), "left_out": ((1, 0, nasty),)})
    page = PageReader(study_page(results, [], nasty))
    assert "img" not in page.tags
    assert page.text.count(nasty) >= 8
    assert "script" not in page.tags


def test_failed_and_missing_runs_stand_on_the_page_with_the_reason(results):
    cell = results.study.cell("FML", "IID")
    first, second, _ = results.study.seeds
    left = {key: outcome for key, outcome in results.outcomes.items() if key not in ((cell, first), (cell, second))}
    page = PageReader(study_page(Results(results.study, left, {(cell, first): "out of memory"}), [], ""))
    table = next(table for table in page.tables if table[0][-1] == "why" and table[0][0] == "row")
    assert table[1:] == [
        ["FML", "IID", "1 and 1", "failed", "out of memory"],
        ["FML", "IID", "2 and 2", "missing", ""],
    ]
