"""A study's results from its runs.csv are those from its runs."""

import pandas as pd
import pytest
from toy_runs import steady, study_of

from fedlit.studies.tables import (
    clients_table,
    cost_table,
    difference_table,
    main_table,
    markdown_table,
    target_table,
)
from tools.paper_pages.recorded import recorded_results

TABLES = (main_table, difference_table, clients_table, cost_table, target_table)
VALUES = {"FedAvg": {1: 0.5, 2: 0.6, 3: 0.7}, "FML": {1: 0.6123456789012345, 2: 0.71, 3: 0.82}}
CONTENT = {
    "rows": {"FedAvg": {}, "FML": {}},
    "columns": {"a": {}, "b": {}},
    "seeds": 3,
    "measure": {"target": 0.65},
    "paper": {"FML": [60.0, None]},
}


def results(tmp_path, without=None):
    def run_of(row, column, seeds):
        if (row, column, seeds.training) == without:
            return None
        value = VALUES[row][seeds.training]
        return {"values": steady(value - 0.1, value + 0.1)}

    return study_of(tmp_path, CONTENT, run_of)


def written(found, folder):
    path = folder / "runs.csv"
    path.write_text(found.runs.to_csv(index=False))
    return path


@pytest.mark.parametrize("without", [None, ("FML", "b", 2)])
def test_tables_of_a_runs_csv_are_those_of_its_runs(without, tmp_path):
    found = results(tmp_path, without)
    recorded = recorded_results(found.study, written(found, tmp_path))
    for table in TABLES:
        assert markdown_table(table(recorded)) == markdown_table(table(found))
    pd.testing.assert_frame_equal(recorded.summary, found.summary)
    assert [recorded.values(cell) for cell in recorded.study.cells] == [
        found.values(cell) for cell in found.study.cells
    ]


def test_a_cell_that_a_runs_csv_lacks_is_missing(tmp_path):
    found = results(tmp_path)
    path = written(found, tmp_path)
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("FML,b")) + "\n")
    recorded = recorded_results(found.study, path)
    assert "missing (0/3)" in markdown_table(main_table(recorded))
    assert recorded.difference(found.study.cell("FML", "b"), found.study.cell("FedAvg", "b")).n == 0
