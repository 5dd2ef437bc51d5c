"""Every number of a study's page is recomputed from the files of its runs, by other means than the page's."""

import csv
import json
from collections import defaultdict
from statistics import mean, stdev

import pytest
from read_page import PageReader
from scipy import stats
from toy_runs import ENVIRONMENT, steady, study_of

from fedlit.studies.page import study_page
from fedlit.studies.results import Results
from fedlit.studies.tables import terminal_table

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
    return PageReader(study_page(results, "fedlit compare study.yaml --seeds 3"))


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


def by_column(page, kind, **given):
    """The charts of a kind, by the title of their figure."""
    wanted = {"kind": kind, **given}
    found = {}
    for number, chart in enumerate(page.charts):
        if all(chart.get(key) == value for key, value in wanted.items()):
            found[page.titles[number]] = chart
    return found


@pytest.mark.parametrize("column", COLUMNS)
def test_curves_over_rounds_are_means_of_metrics_csv_with_their_deviation(page, results, column):
    chart = by_column(page, "lines", unit="rounds")[column]
    assert [line["name"] for line in chart["series"]] == list(ROWS)
    for line in chart["series"]:
        assert line["x"] == [1, 2, 3, 4]
        for i, round in enumerate(line["x"]):
            runs = [100 * mean(accuracies(outcome)[round]) for outcome in outcomes(results, line["name"], column)]
            assert line["y"][i] == pytest.approx(mean(runs), rel=1e-4)
            assert line["sd"][i] == pytest.approx(stdev(runs), rel=1e-4)
            assert line["low"][i] == pytest.approx(mean(runs) - stdev(runs), rel=1e-4)
            assert line["high"][i] == pytest.approx(mean(runs) + stdev(runs), rel=1e-4)


@pytest.mark.parametrize("column", COLUMNS)
def test_curves_over_bytes_are_sums_of_ledger_csv(page, results, column):
    chart = by_column(page, "lines", unit="bytes")[column]
    over_rounds = by_column(page, "lines", unit="rounds")[column]
    for line, same in zip(chart["series"][:2], over_rounds["series"][:2], strict=True):
        sent = [
            mean(bytes_until(outcome, round) for outcome in outcomes(results, line["name"], column))
            for round in same["x"]
        ]
        assert line["x"] == pytest.approx(sent, rel=1e-5)
        assert line["y"] == same["y"]
    silent = chart["series"][2]
    assert silent["level"]
    assert silent["y"] == over_rounds["series"][2]["y"][-1:]


def test_the_table_has_means_and_deviations_of_the_last_round(page, results):
    table = page.table("", "IID", "two classes")
    for row in ROWS:
        for column, cell in zip(COLUMNS, table[row], strict=True):
            runs = values(results, row, column)
            assert cell == f"{mean(runs):.2f} ± {stdev(runs):.2f}"


def test_differences_are_those_of_scipys_paired_test_in_table_and_forest(page, results):
    tables = [table for table in page.tables if table[0] == ["", "IID", "two classes"]]
    shown = {row[0]: row[1:] for row in tables[1][1:]}
    assert list(shown) == ["FML", "alone"]
    for number, column in enumerate(COLUMNS):
        forest = by_column(page, "lanes", zero=True)[column]
        for lane in forest["lanes"]:
            test = stats.ttest_rel(values(results, lane["label"], column), values(results, "FedAvg", column))
            low, high = test.confidence_interval(0.95)
            middle = mean(values(results, lane["label"], column)) - mean(values(results, "FedAvg", column))
            assert lane["mean"] == pytest.approx(middle, rel=1e-4)
            assert lane["interval"] == pytest.approx([low, high], rel=1e-4)
            told = shown[lane["label"]][number]
            assert told == lane["told"]
            assert told.startswith(f"{middle:+.2f} [{low:+.2f}, {high:+.2f}]")
            assert told.endswith("p < 0.001" if test.pvalue < 0.001 else f"p = {test.pvalue:.3f}")


def is_ahead(results, row, column) -> bool:
    """Of all others of its column, by scipy."""
    for other in ROWS.keys() - {row}:
        test = stats.ttest_rel(values(results, row, column), values(results, other, column))
        if test.confidence_interval(0.95).low <= 0:
            return False
    return True


def test_bold_is_what_is_ahead_by_intervals_without_0_and_nothing_else(page, results):
    best = [(row, column) for row in ROWS for column in COLUMNS if is_ahead(results, row, column)]
    assert best == [("FML", "IID")]  # in the other column, an interval holds 0
    runs = values(results, *best[0])
    assert page.bold == [f"{mean(runs):.2f} ± {stdev(runs):.2f}"]


def test_clients_are_those_of_the_last_round(page, results):
    chart = next(chart for chart in page.charts_of("lanes") if "box" in chart["lanes"][0])
    for lane in chart["lanes"]:
        found = [accuracies(outcome)[4] for outcome in outcomes(results, lane["label"], "IID")]
        expected = [100 * value for clients in found for value in clients]
        assert [point["value"] for point in lane["points"]] == pytest.approx(expected, rel=1e-4)
    table = page.table("", "worst client", "worst tenth", "spread (sd)", "better than alone")
    alone = [accuracies(outcome)[4] for outcome in outcomes(results, "alone", "IID")]
    for row in ("FedAvg", "FML"):
        clients = [accuracies(outcome)[4] for outcome in outcomes(results, row, "IID")]
        assert table[f"{row}, IID"][0] == f"{100 * mean(map(min, clients)):.2f}"
        assert table[f"{row}, IID"][1] == table[f"{row}, IID"][0]  # a tenth of three clients is one
        spread = mean(stdev(run) * (2 / 3) ** 0.5 for run in clients)
        assert table[f"{row}, IID"][2] == f"{100 * spread:.2f}"
        better = mean(mean(a > b for a, b in zip(*runs, strict=True)) for runs in zip(clients, alone, strict=True))
        assert table[f"{row}, IID"][3] == f"{100 * better:.0f} % of clients"


def first_round_of(outcome) -> int:
    return next(round for round, clients in accuracies(outcome).items() if mean(clients) >= 0.45)


def test_rounds_bytes_and_seconds_to_the_target_are_counted_in_the_files(page, results):
    table = page.table("", "reached", "rounds", "bytes", "seconds")
    for row in ("FedAvg", "FML"):
        rounds = [first_round_of(outcome) for outcome in outcomes(results, row, "IID")]
        sent = [
            bytes_until(outcome, round) / 1000
            for outcome, round in zip(outcomes(results, row, "IID"), rounds, strict=True)
        ]
        assert table[f"{row}, IID"] == [
            "3 of 3",
            f"{mean(rounds):.1f} ± {stdev(rounds):.1f}",
            f"{mean(sent):.2f} ± {stdev(sent):.2f} kB",
            f"{1.5 * mean(rounds):.1f} ± {1.5 * stdev(rounds):.1f} s",
        ]
        lane = next(lane for lane in by_column(page, "lanes", bars=True)["IID"]["lanes"] if lane["label"] == row)
        assert [point["value"] for point in lane["points"]] == rounds


def test_runs_that_never_reach_the_target_are_told_and_in_no_mean(page, results):
    table = page.table("", "reached", "rounds", "bytes", "seconds")
    found = outcomes(results, "FedAvg", "two classes")
    came = [outcome for outcome in found if mean(accuracies(outcome)[4]) >= 0.45]
    assert len(came) == 1
    rounds = first_round_of(came[0])
    sent = bytes_until(came[0], rounds) / 1000
    assert table["FedAvg, two classes"] == ["1 of 3", f"{rounds:.1f}", f"{sent:.2f} kB", f"{1.5 * rounds:.1f} s"]


def test_a_runs_bytes_and_rounds_are_those_of_the_files(page, results):
    table = page.table("", "rounds", "bytes", "seconds")
    total = bytes_until(outcomes(results, "FML", "IID")[0], 4)
    assert table["FML, IID"] == ["4", f"{total / 1000:.2f} kB", "6.0"]
    assert table["alone, IID"][1] == "0 B"


def test_who_holds_what_is_counted_in_partition_csv(page, results):
    counts = [[0] * 3 for _ in range(3)]
    for line in lines(outcomes(results, "FedAvg", "IID")[0], "partition.csv"):
        if line["split"] == "train":
            counts[int(line["client"])][int(line["label"])] += 1
    heats = by_column(page, "heat")
    assert list(heats) == ["IID; two classes"]  # both hold the same
    assert heats["IID; two classes"]["counts"] == counts


def test_who_was_left_out_is_told_with_the_reason(page):
    assert page.table("cell", "run", "client", "why", "rounds") == {
        "FML, IID": ["seed 2", "1", "its loss is not finite", "3"]
    }


def test_the_page_says_how_it_was_made(page):
    assert "fedlit compare study.yaml --seeds 3" in page.text
    assert "training 2, partition 2" in page.text
    made_with = page.table("", "fedlit", "torch")["18 runs"]
    assert made_with[:6] == [str(value) for value in ENVIRONMENT.values()]


def test_the_page_names_what_differs_between_rows(page):
    options = page.table("option", *ROWS)
    assert options == {"model.class_path": [f"fedlit.methods.{name}" for name in ("FedAvg", "FML", "LocalOnly")]}


def test_the_page_asks_no_network_for_anything(page):
    assert page.addresses == []
    assert "link" not in page.tags


def test_a_number_changed_in_a_file_changes_the_page(tmp_path):
    results = study_of(tmp_path, {"rows": {"FedAvg": {}, "FML": {}}, "columns": {"IID": {}}}, run_of)
    before = PageReader(study_page(results, "")).charts_of("lines", unit="rounds")
    path = outcomes(results, "FML", "IID")[0].folder / "metrics.csv"
    path.write_text(path.read_text().replace("4,federate,0,global,own,acc,0.", "4,federate,0,global,own,acc,0.9"))
    fresh = {key: type(outcome)(outcome.folder) for key, outcome in results.outcomes.items()}
    after = PageReader(study_page(Results(results.study, fresh, {}), "")).charts_of("lines", unit="rounds")
    assert before[0]["series"][0] == after[0]["series"][0]
    assert before[0]["series"][1] != after[0]["series"][1]


def test_names_of_users_are_text_and_never_markup(tmp_path):
    nasty = "</script><img src=x onerror=alert(1)> & \"quoted\" 'name'"
    content = {"title": nasty, "note": nasty, "source": nasty, "rows": {nasty: {}, "b": {}}, "columns": {nasty: {}}}
    results = study_of(tmp_path, content, lambda *_: {"values": steady(0.5, 0.6), "left_out": ((1, 0, nasty),)})
    page = PageReader(study_page(results, nasty))
    assert "img" not in page.tags
    assert page.text.count(nasty) >= 8
    assert page.tags.count("script") == 2
    assert page.charts_of("lines")[0]["series"][0]["name"] == nasty


def test_failed_and_missing_runs_stand_on_the_page_with_the_reason(results):
    cell = results.study.cell("FML", "IID")
    first, second, _ = results.study.seeds
    left = {key: outcome for key, outcome in results.outcomes.items() if key not in ((cell, first), (cell, second))}
    page = PageReader(study_page(Results(results.study, left, {(cell, first): "out of memory"}), ""))
    table = next(table for table in page.tables if table[0][-1] == "why" and table[0][0] == "row")
    assert table[1:] == [
        ["FML", "IID", "1 and 1", "failed", "out of memory"],
        ["FML", "IID", "2 and 2", "missing", ""],
    ]


@pytest.mark.parametrize(("data", "is_told"), [({"alpha": 0.5}, True), ({"alpha": 0.3}, False)])
def test_rows_on_other_data_are_told_apart(tmp_path, data, is_told):
    def other_data(row, column, seeds):
        return {"values": steady(0.5), "data": data if row == "b" else {"alpha": 0.3}}

    results = study_of(tmp_path, {"rows": {"a": {}, "b": {}}}, other_data)
    text = PageReader(study_page(results, "")).text
    assert ("Rows differ in their data" in text) is is_told
    assert ("differ in their data" in terminal_table(results)) is is_told
    assert ("data.alpha" in text) is is_told


@pytest.mark.parametrize(
    ("row", "rounds", "is_told"), [({}, 2, True), ({}, 3, False), ({"trainer.num_rounds": 2}, 2, False)]
)
def test_rows_whose_recipes_train_longer_are_told_unless_a_row_says_so_itself(tmp_path, row, rounds, is_told):
    def other_rounds(name, column, seeds):
        numbers = range(1, 1 + (rounds if name == "b" else 3))
        return {"values": {number: {0: 0.5, 1: 0.6} for number in numbers}}

    results = study_of(tmp_path, {"rows": {"a": {}, "b": row}}, other_rounds)
    text = PageReader(study_page(results, "")).text
    assert ("Rows differ in how long they train" in text) is is_told
    assert ("trainer.num_rounds is a 3, b 2; typed" in terminal_table(results)) is is_told


def test_data_of_charts_are_json_that_every_browser_reads(page):
    assert json.loads(json.dumps(page.charts, allow_nan=False)) == page.charts
