import re

import pytest
from toy_runs import steady, study_of

from fedlit.studies.results import Results
from fedlit.studies.tables import latex_escaped, latex_table, markdown_tables, terminal_table

# Two clients each, so that a run's number is their mean. FedAvg: 50, 60, 70 %, mean 60, sd 10. FML is ahead by 10, 11
# and 12: mean 11, sd 1, and 4.3027 / sqrt(3) = 2.4841 to either side; t = 11 sqrt(3) = 19.053, p = 0.0027.
FEDAVG = {1: 0.5, 2: 0.6, 3: 0.7}
AHEAD = {1: 0.60, 2: 0.71, 3: 0.82}
TORN = {1: 0.40, 2: 0.70, 3: 0.80}  # ahead by -10, 10, 10: the interval holds 0


def both(tmp_path, second, **content):
    def run_of(row, column, seeds):
        value = (FEDAVG if row == "FedAvg" else second)[seeds.training]
        return {"values": steady(value - 0.1, value + 0.1)}

    return study_of(tmp_path, {"rows": {"FedAvg": {}, "FML": {}}, "seeds": 3, **content}, run_of)


@pytest.fixture
def ahead(tmp_path):
    return both(tmp_path, AHEAD)


@pytest.fixture
def torn(tmp_path):
    return both(tmp_path, TORN)


def line_of(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if name in line)


def test_the_terminal_shows_means_and_paired_differences_as_worked_by_hand(ahead):
    text = terminal_table(ahead, width=100)
    assert "60.00 ± 10.00" in line_of(text, "FedAvg ")
    assert "71.00 ± 11.00 *" in line_of(text, "FML")
    assert "+11.00 [+8.52, +13.48], p = 0.003" in text


def test_what_is_ahead_by_an_interval_without_0_is_bold(ahead):
    assert "**71.00 ± 11.00**" in markdown_tables(ahead)
    assert r"\textbf{71.00 $\pm$ 11.00}" in latex_table(ahead)
    assert latex_table(ahead).count(r"\textbf") == 1


def test_what_is_ahead_by_an_interval_with_0_is_not_bold(torn):
    assert "63.33 ± 20.82" in terminal_table(torn)
    assert "*" not in terminal_table(torn)
    assert "**" not in markdown_tables(torn)
    assert r"\textbf" not in latex_table(torn)


def test_the_papers_number_stands_beside_ours(tmp_path):
    results = both(tmp_path, AHEAD, paper={"FedAvg": 61.5}, columns={"IID": {}}, source="their table 1")
    latex = latex_table(results)
    assert r"FedAvg & 60.00 $\pm$ 10.00 & 61.5 \\" in latex
    assert r"FML & \textbf{71.00 $\pm$ 11.00} & -- \\" in latex
    assert r"\multicolumn{2}{c}{IID}" in latex
    assert "their table 1" in latex
    assert "61.5" in line_of(terminal_table(results), "FedAvg")
    assert "| FedAvg | 60.00 ± 10.00 | 61.5 |" in markdown_tables(results)


def test_missing_and_failed_runs_are_reported(tmp_path):
    def run_of(row, column, seeds):
        if row == "broken" or (row == "half" and seeds.training == 2):
            return None
        return {"values": steady(0.4, 0.6)}

    results = study_of(tmp_path, {"rows": {"whole": {}, "half": {}, "broken": {}}, "seeds": 2}, run_of)
    failed = {(results.study.cells[2], seeds): "no memory" for seeds in results.study.seeds}
    text = terminal_table(Results(results.study, results.outcomes, failed))
    assert line_of(text, "whole").rstrip().endswith("50.00 ± 0.00")
    assert "50.00 (1/2)" in line_of(text, "half")
    assert "failed (2/2)" in line_of(text, "broken")
    assert "missing (0/2)" in line_of(terminal_table(results), "broken")
    assert "(k/2): only k of 2 runs are done" in markdown_tables(results)


def test_a_target_says_how_many_reached_it(tmp_path):
    measure = {"at": "rounds_to_target", "target": 0.45}

    def run_of(row, column, seeds):
        last = {"fast": 0.9, "torn": 0.5 if seeds.training == 1 else 0.4, "slow": 0.4}[row]
        return {"values": steady(last, last), "bytes_up": 1000}

    rows = {"fast": {}, "torn": {}, "slow": {}}
    results = study_of(tmp_path, {"rows": rows, "seeds": 2, "measure": measure}, run_of)
    main = terminal_table(results, width=100).split("\n\n")[0]
    assert "1.0 ± 0.0" in line_of(main, "fast")
    assert "2.0 (1 of 2 reached)" in line_of(main, "torn")
    assert "not reached (0 of 2 reached)" in line_of(main, "slow")
    block = terminal_table(results, width=100).split("\n\n")[2]
    assert re.split(r"  +", line_of(block, "fast")) == ["fast", "2 of 2", "1.0 ± 0.0", "4.00 ± 0.00 kB", "1.5 ± 0.0 s"]
    assert re.split(r"  +", line_of(block, "torn")) == ["torn", "1 of 2", "2.0", "8.00 kB", "3.0 s"]


def test_latex_and_markdown_print_names_as_they_are(tmp_path):
    name = r"50% of A_1 & B^2 <#{~}$ |\x"

    def run_of(row, column, seeds):
        return {"values": steady(0.5)}

    results = study_of(tmp_path, {"rows": {name: {}}, "title": name}, run_of)
    assert latex_escaped(name) in latex_table(results)
    assert not re.search(r"(?<!\\)[%&#_](?!\\)", latex_escaped(name).replace(r"\&", ""))
    assert r"50% of A\_1 &amp; B^2 &lt;\#{~}$ \|\\x" in markdown_tables(results)


def test_columns_that_do_not_fit_stand_in_blocks_or_are_resized(tmp_path):
    columns = {f"a long name of column {i}": {} for i in range(6)}
    results = both(tmp_path, AHEAD, columns=columns, seeds=1)
    lines = terminal_table(results, width=60).splitlines()
    assert max(map(len, lines)) <= 84  # the note on what is marked is a sentence
    assert r"\resizebox{\textwidth}{!}{%" in latex_table(results)
    assert all(latex_table(results).count(rf"column {i}") == 1 for i in range(6))
