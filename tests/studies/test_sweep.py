"""Sweeps: the best of several settings is selected on seeds and a measure of its own, then run on the table's seeds.

Here with a fit that ends at once, whose accuracy is highest with lr 0.1 and mu 0.1.
"""

from pathlib import Path

import pandas as pd
import pytest
import yaml
from read_page import PageReader
from toy_recipe import write_recipe

from fedlit.cli.compare import main
from fedlit.studies.execution import Launcher
from fedlit.studies.study import build_study
from fedlit.studies.sweep import settings_of

SWEEP = {"model.mu": [0.01, 0.1, 1], "model.optimizer.lr": [0.01, 0.1]}
FEDPROX = {"model": {"class_path": "FedProx"}}


def fake_launcher(method: str) -> Launcher:
    return Launcher(method, "fake_fit", "runs_by_hand")


@pytest.fixture(autouse=True)
def stand(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlit", "compare"])
    monkeypatch.setattr("fedlit.cli.study_call.Launcher", fake_launcher)
    monkeypatch.setattr("fedlit.studies.execution.PAUSE", 0.01)
    monkeypatch.setattr("fedlit.studies.pages.draw_all", lambda results: [])  # figures take long
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    write_recipe("toy.yaml")


def write_study(**changes) -> None:
    content = {"recipe": "toy.yaml", "rows": {"FedAvg": {}, "FedProx": FEDPROX}, "seeds": 2, "sweep": SWEEP, **changes}
    Path("study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


def compare(*args: str) -> int:
    with pytest.raises(SystemExit) as end:
        main([*args, "--output", "out"])
    return end.value.code


def settings() -> pd.DataFrame:
    return pd.read_csv("out/settings.csv", keep_default_na=False)


def chosen() -> dict[str, tuple[str, str]]:
    lines = settings().query("chosen")
    return dict(zip(lines["row"], zip(lines["model.mu"], lines["model.optimizer.lr"], strict=True), strict=True))


def calls() -> dict[str, int]:
    return {str(path.parent): len(path.read_text().splitlines()) for path in Path("out").rglob("calls.txt")}


def test_the_best_setting_of_each_row_is_run_on_the_seeds_of_the_table(capsys):
    write_study()
    assert compare("study.yaml") == 0
    said = capsys.readouterr()
    assert len(settings()) == 2 + 6
    assert {key: tuple(map(str, value)) for key, value in chosen().items()} == {
        "FedAvg": ("", "0.1"),
        "FedProx": ("0.1", "0.1"),
    }
    made = calls()
    assert len(made) == 8 + 4
    assert {Path(name).name for name in made if "settings" in name} == {"seed_100"}
    config = yaml.safe_load(Path("out/runs/FedProx/seed_2/run.yaml").read_text())["model"]["init_args"]
    assert (config["mu"], config["optimizer"]["init_args"]["lr"]) == (0.1, 0.1)
    assert sorted(pd.read_csv("out/runs.csv")["training_seed"]) == [1, 1, 2, 2]
    assert "note: FedAvg has no `model.mu`, which is not swept there." in said.err
    edge = "the chosen `model.optimizer.lr` 0.1 is at the edge of 0.01, 0.1; a value beyond it may be better."
    assert said.err.count("warning: ") == 2
    assert f"warning: FedProx: {edge}" in said.err
    assert "FedProx: chosen model.mu=0.1, model.optimizer.lr=0.1" in said.out
    page = PageReader(Path("out/report.html").read_text())
    table = next(table for table in page.tables if "selected by" in table[0])
    assert table[0] == ["", "model.mu", "model.optimizer.lr", "selected by"]
    assert [row[0] for row in table[1:]] == ["FedAvg"] * 2 + ["FedProx"] * 6
    assert page.bold == ["67.50", "67.50"]
    assert edge in page.text
    assert "All settings" in Path("out/table.md").read_text()
    assert compare("study.yaml") == 0
    assert calls() == made  # nothing twice


def test_the_command_line_sweeps_recipes_over_a_grid(capsys):
    options = ["--sweep", "model.optimizer.lr=0.01,0.1", "--sweep", "model.weighting=uniform,examples"]
    assert compare("toy.yaml", *options, "--tune-seeds", "2", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "new    toy, model.optimizer.lr=0.01, model.weighting=uniform, seed 100"
    assert lines[-2].startswith("8 runs, 0 of them done")
    assert lines[-1] == "Up to 1 more follow, with the settings that are chosen."
    assert compare("toy.yaml", *options) == 0
    lines = settings()
    assert lines[["model.optimizer.lr", "model.weighting"]].values.tolist() == [
        [0.01, "uniform"],
        [0.01, "examples"],
        [0.1, "uniform"],
        [0.1, "examples"],
    ]
    assert lines["chosen"].tolist() == [False, False, True, False]  # the first of those that are equal


def test_a_setting_that_fails_is_not_chosen_and_without_any_the_row_is_missing(capsys):
    write_study(sweep={"model.optimizer.lr": [0.2, 5]}, rows={"FedAvg": {}})
    assert compare("study.yaml") == 1
    assert "failed: FedAvg, model.optimizer.lr=5, seed 100: the loss is not finite" in capsys.readouterr().err
    assert settings()["chosen"].tolist() == [True, False]
    assert pd.read_csv("out/runs.csv")["status"].tolist() == ["done", "done"]
    write_study(sweep={"model.optimizer.lr": [5, 6]})
    with pytest.raises(SystemExit) as end:
        main(["study.yaml", "--output", "none"])
    assert end.value.code == 1
    assert "No run is done yet" in capsys.readouterr().err


def test_shares_of_a_cluster_make_the_settings_first(capsys):
    write_study()
    assert compare("study.yaml", "--array", "1/2") == 0
    assert "The settings of 2 cells are not all run yet: call again once they are." in capsys.readouterr().err
    assert all("settings" in name for name in calls())
    assert compare("study.yaml", "--array", "2/2") == 0
    assert compare("study.yaml", "--array", "1/2") == 0
    assert pd.read_csv("out/runs.csv")["status"].tolist() == ["done"] * 4
    assert set(calls().values()) == {1}


@pytest.mark.parametrize(
    ("measure", "expected"),
    [
        ({"metric": "acc/global_on_pooled"}, "Accuracy of the global model on own data (%), last round"),
        ({"at": "rounds_to_target", "target": 0.9}, "Accuracy on own data (%), last round"),
        ({"at": "best", "over_clients": "worst"}, "Accuracy on own data, worst client (%), best round"),
    ],
)
def test_settings_are_selected_on_validation_samples(measure, expected):
    content = {"recipe": "r", "rows": {"a": {}}, "sweep": {"model.mu": [1, 2]}, "measure": measure}
    found = settings_of(build_study(content), lambda cell: {"model": {"init_args": {"mu": 1}}})
    assert [str(setting.trial.measure) for setting in found] == [expected] * 2
