"""Runs that are there already become a study: rows by method, columns by data, pairs by seeds."""

import pytest
from runs_by_hand import write_run

from fedlit.studies.config_diff import of_runs


def test_rows_are_methods_and_the_options_in_which_their_runs_differ(tmp_path):
    folders = [
        write_run(tmp_path / "a", [[0.5, 0.6]], method="fedlit.FedAvg"),
        write_run(tmp_path / "b", [[0.5, 0.6]], method="fedlit.FML", options={"alpha": 0.5}),
        write_run(tmp_path / "c", [[0.5, 0.6]], method="fedlit.FML", options={"alpha": 0.7}),
    ]
    study, outcomes = of_runs(folders, {})
    assert study.rows == ("FedAvg", "FML (alpha=0.5)", "FML (alpha=0.7)")
    assert len(outcomes) == 3


def test_seeds_of_runs_are_pairs_of_one_cell(tmp_path):
    folders = [write_run(tmp_path / str(seed), [[0.5, 0.6]], seed=seed) for seed in (3, 1)]
    study, _outcomes = of_runs(folders, {"measure": {"at": "best"}})
    assert study.rows == ("FedAvg",)
    assert [pair.training for pair in study.seeds] == [1, 3]
    assert study.cells[0].measure.at == "best"


def test_the_same_run_twice_is_refused(tmp_path):
    folders = [write_run(tmp_path / name, [[0.5, 0.6]]) for name in "ab"]
    with pytest.raises(ValueError, match="are the same run with the same seeds"):
        of_runs(folders, {})
