import csv
import re
from pathlib import Path
from statistics import mean

import pytest
from read_page import PageReader
from toy_runs import ENVIRONMENT, steady, write_run
from toys import SGD, SmallCNN, fitted

from fedlit import FedAvg, studies
from fedlit.cli import report
from fedlit.studies.outcome import Outcome
from fedlit.studies.pages import run_page


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The run of a real federation, with its page."""
    root = tmp_path_factory.mktemp("run")
    federation = fitted(FedAvg(SmallCNN, SGD), num_rounds=2, default_root_dir=str(root), report=True)
    return Path(federation.log_dir)


@pytest.fixture(scope="module")
def page(folder):
    return PageReader((folder / "report.html").read_text())


def lines(folder, name):
    with (folder / name).open() as file:
        return list(csv.DictReader(file))


def test_scores_are_those_of_the_clients_and_pictures_are_in_the_page(page, folder):
    by_key = {}
    for line in lines(folder, "metrics.csv"):
        key = f"{line['metric']}/{line['model']}_on_{line['data']}"
        by_key.setdefault(key, {}).setdefault(int(line["round"]), []).append(float(line["value"]))
    table = page.table("", "last mean", "least", "most")
    assert table.keys() == by_key.keys()
    for key, rounds in by_key.items():
        means = {number: mean(values) for number, values in rounds.items()}
        best = min(means, key=means.get) if "loss" in key else max(means, key=means.get)
        expected = [means[2], min(rounds[2]), max(rounds[2]), means[best]]
        assert table[key] == [*(f"{number:.4f}" for number in expected), str(best)]
    assert page.pictures[:2] == ["Curves", "Data of the clients"]


def test_seconds_events_configuration_and_environment_are_reported(tmp_path):
    folder = write_run(tmp_path / "run", steady(0.4, 0.6), left_out=((2, 1, "its loss is <nan>"),))
    page = PageReader(run_page(Outcome(folder)))
    happened = next(table for table in page.tables if table[0] == ["time", "event", "details"])
    assert [row[1] for row in happened[1:]] == ["fit", "left_out", "end"]
    assert happened[2][2] == "round: 2, client: 1, reason: its loss is <nan>"
    assert "class_path: fedlit.methods.FedAvg" in page.text
    environment = page.table("", "at the last start")
    assert {name: environment[name] for name in ENVIRONMENT} == {k: [str(v)] for k, v in ENVIRONMENT.items()}
    assert "2 of 2 rounds are done, in 3.0 s" in page.text
    assert page.addresses == []


def test_a_run_that_was_stopped_says_so(tmp_path):
    folder = write_run(tmp_path / "run", steady(0.4, 0.6))
    events = folder / "events.jsonl"
    events.write_text(events.read_text().replace('"stopped_by": null', '"stopped_by": 15'))
    assert "Stopped by signal 15." in PageReader(run_page(Outcome(folder))).text


def test_fit_writes_no_page_where_pandas_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(studies, "find_spec", lambda name: None)
    federation = fitted(FedAvg(SmallCNN, SGD), num_rounds=1, default_root_dir=str(tmp_path), report=True)
    assert Path(federation.log_dir, "metrics.csv").exists()
    assert not Path(federation.log_dir, "report.html").exists()


def test_the_command_writes_a_page_for_each_run_where_it_is_reported(tmp_path, capsys):
    folders = [write_run(tmp_path / "lightning_logs" / f"version_{i}", steady(0.5)) for i in range(2)]
    report.main([str(folder) for folder in folders])
    assert capsys.readouterr().out.split() == [str(folder / "report.html") for folder in folders]
    report.main([str(folders[0]), "--output", "page.html"])
    assert Path("page.html").read_text() == (folders[0] / "report.html").read_text()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["gone"], "gone is not the folder of a run: it has no metrics.csv."),
        (["run", "gone"], "gone is not the folder of a run: it has no metrics.csv."),
        (["half"], "half is not the folder of a run: it has no ledger.csv."),
        (["study"], "study is the folder of a study: `fedlit compare` with what made it writes its page again."),
        (["run", "run", "--output", "x.html"], "`--output` takes the page of one run, got 2 runs."),
        (["run", "--output", "run"], "`--output run` must be a file, and it is a folder."),
        (["run", "--output", "none/x.html"], "`--output none/x.html`: there is no folder none."),
        (["run", "--outptu", "x.html"], "`--outptu` is not an option of fedlit report. Did you mean output?"),
        ([], "fedlit report: the following arguments are required: RUN."),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(args, message, tmp_path, capsys):
    write_run(tmp_path / "run", steady(0.5))
    (tmp_path / "half").mkdir()
    (tmp_path / "half" / "metrics.csv").write_text("round\n")
    (tmp_path / "study").mkdir()
    (tmp_path / "study" / "summary.csv").write_text("row\n")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(SystemExit) as end:
        report.main(args)
    assert end.value.code == 2
    assert capsys.readouterr().err == f"fedlit: error: {message}\n"
    assert sorted(tmp_path.rglob("*")) == before


def test_half_a_last_line_of_a_killed_run_is_left_out_and_said(tmp_path, capsys):
    folder = write_run(tmp_path / "run", steady(0.5))
    for name, half in (("metrics.csv", "3,feder"), ("ledger.csv", "3,0,u"), ("events.jsonl", '{"event": "ro')):
        (folder / name).write_text((folder / name).read_text() + half)
    report.main(["run"])
    message = "run: the last line of metrics.csv and of ledger.csv and of events.jsonl is not whole, and was left out."
    assert capsys.readouterr().err == f"fedlit: note: {message}\n"
    page = PageReader((folder / "report.html").read_text())
    assert message in page.text
    assert "2 of 2 rounds are done" in page.text


@pytest.mark.parametrize(
    ("name", "before", "after", "message"),
    [
        ("metrics.csv", ",value", "", "metrics.csv must begin with .round,"),
        ("metrics.csv", ",value", ",value,x", "metrics.csv must begin with .round,"),
        ("metrics.csv", ",acc,0.25", ",acc", "line 2 of .*metrics.csv is not one that a run writes"),
        ("ledger.csv", ",bytes", ",size", "ledger.csv must begin with .round,"),
        ("ledger.csv", "1,0,up,model,100", "1,0,up,model,1,1", "line 3 of .*ledger.csv is not one"),
        ("ledger.csv", "1,0,up", "1,all,up", "ledger.csv cannot be read: .*'all'"),
        ("events.jsonl", '"seconds"', '"minutes"', "events.jsonl: the event `round` has no valid `seconds`"),
        ("events.jsonl", '"event": "round"', '"what": "round"', "line 2 of .*events.jsonl is not an event"),
        ("config.yaml", "model:", "model: [", "config.yaml must be YAML"),
    ],
)
def test_records_that_no_run_writes_are_refused_by_file(name, before, after, message, tmp_path, capsys):
    folder = write_run(tmp_path / "run", steady(0.5))
    text = (folder / name).read_text()
    assert before in text
    (folder / name).write_text(text.replace(before, after))
    with pytest.raises(SystemExit) as end:
        report.main(["run"])
    assert end.value.code == 2
    assert re.fullmatch(f"fedlit: error: .*{message}.*\n", capsys.readouterr().err)
    assert not (folder / "report.html").exists()
