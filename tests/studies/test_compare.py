"""`fedlit compare`: bad input, runs that are never repeated, shares of a cluster, and a kill in the middle."""

import errno
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
import yaml
from toy_recipe import write_recipe

from fedlit.cli.compare import main
from fedlit.studies.execution import Launcher


@pytest.fixture(autouse=True)
def stand(tmp_path, monkeypatch):
    """In a folder with two recipes that take a moment."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["fedlit", "compare"])
    write_recipe("slow.yaml", ("lr: 0.1", "lr: 0.01"))
    write_recipe("swift.yaml")


def compare(*args: str) -> int:
    with pytest.raises(SystemExit) as end:
        main(list(args))
    return end.value.code


def write_study(**changes) -> None:
    content = {"recipe": "swift.yaml", "rows": {"swift": {}, "slow": {"model.optimizer.lr": 0.01}}, **changes}
    Path("study.yaml").write_text(yaml.safe_dump(content, sort_keys=False))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ([], "give a study, recipes to compare, or `--from-runs`"),
        (["nowhere.yaml"], "`--config nowhere.yaml`: there is no such file here, nor such a recipe"),
        (["swift.yaml", "swift.yaml"], "swift.yaml is given twice."),
        (["swift.yaml", "--sedes", "3"], "`--sedes` is not an option of fedlit compare. Did you mean seeds?"),
        (["swift.yaml", "--seeds", "0"], "`--seeds` must be at least 1, got 0."),
        (["swift.yaml", "--jobs", "-1"], "`--jobs` must be at least 1, got -1."),
        (["swift.yaml", "--run-timeout", "0"], "`--run-timeout` must be above 0, got 0."),
        (["--from-runs", "x", "--run-timeout", "9"], "`--run-timeout` is for new runs"),
        (
            ["swift.yaml", "--model.mu", "0.01", "0.1", "1", "--seeds", "2"],
            "`--model.mu` takes one value; to compare several, give `--sweep model.mu=0.01,0.1,1`.",
        ),
        (["swift.yaml", "--sweep", "model.mu"], "`--sweep` must be an option and its values, such as"),
        (["swift.yaml", "--sweep", "model.mu=1,1"], "`sweep.model.mu` must name each value once, got [1, 1]."),
        (["swift.yaml", "--sweep", "model.mu=1,2"], "`sweep`: `model.mu` is not an option of swift."),
        (
            ["swift.yaml", "--sweep", "model.optimizer.lr=1,fast"],
            "swift, model.optimizer.lr=fast: `model.optimizer.lr`",
        ),
        (
            ["swift.yaml", "--sweep", "model.optimizer.lr=1,2", "--model.optimizer.lr", "3"],
            "`--model.optimizer.lr` is swept",
        ),
        (["swift.yaml", "--tune-seeds", "0"], "`--tune-seeds` must be at least 1, got 0."),
        (["--from-runs", "x", "--sweep", "model.mu=1,2"], "`--sweep` is for new runs"),
        (["swift.yaml", "--array", "3/2"], "`--array` must be N/M with N from 1 to M, such as 1/4, got 3/2."),
        (["swift.yaml", "--only", "fml"], "`--only fml` names no cell; rows: swift"),
        (["swift.yaml", "--only", "a", "b", "c"], "`--only` takes a row and a column, got 3 words"),
        (["swift.yaml", "--baseline", "fml"], "`baseline` must be one of the rows (swift), got 'fml'."),
        (["swift.yaml", "--seed_everything", "3"], "`--seed_everything` is set by the study"),
        (["swift.yaml", "--trainer.num_rounds"], "`--trainer.num_rounds` needs a value."),
        (["swift.yaml", "--trainer.num_round", "3"], "swift: `trainer.num_round` is not an option"),
        (["swift.yaml", "--trainer.num_rounds", "many"], "swift: `trainer.num_rounds`: Expected int. Got value: many"),
        (["swift.yaml", "--trainer.num_rounds", "0"], "swift: `trainer.num_rounds` must be at least 1, got 0."),
        (["study.yaml", "swift.yaml"], "give one study, or recipes to compare; not both."),
        (["--from-runs", "nowhere"], "`--from-runs nowhere` is not the folder of a run: it has no metrics.csv."),
        (["swift.yaml", "--from-runs", "x"], "`--from-runs` takes existing runs"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(args, words, capsys):
    write_study()
    before = sorted(os.listdir())
    assert compare(*args) == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert said.out == ""
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rows": {"a": {"modle.alpha": 1}}}, "a: `modle.alpha` is not an option"),
        ({"rows": {"a": {"model.alpha": 1}}}, "a: `model.alpha` is not an option"),
        ({"rows": {"a": {"model": {"class_path": "FedAwg"}}}}, "a: `model`: there is no class 'FedAwg'"),
        ({"rows": {"a": {"data.partition": "Shard"}}}, "a: `data.partition`: there is no class 'Shard'"),
        ({"rows": {"a": {"recipe": "nowhere.yaml"}}}, "a: `recipe: nowhere.yaml`: there is no such file here"),
        (
            {"columns": {"c": {"trainer.fraction_fit": 2}}},
            "swift, c: `trainer.fraction_fit` must lie in (0, 1]",
        ),
        ({"options": {"trainer": {"nonsense": 1}}}, "swift: `trainer.nonsense` is not an option"),
    ],
)
def test_a_cell_that_cannot_be_is_named_before_any_run(changes, words, capsys):
    write_study(**changes)
    before = sorted(os.listdir())
    assert compare("study.yaml", "--seeds", "2") == 2
    said = capsys.readouterr()
    assert words in said.err
    assert said.err.count("\n") == 1
    assert sorted(os.listdir()) == before


def test_a_dry_run_lists_every_first_seed_first_and_writes_nothing(capsys):
    before = sorted(os.listdir())
    assert compare("swift.yaml", "slow.yaml", "--seeds", "2", "--dry-run") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1)[1] for line in lines[:4]] == [
        "swift, seed 1",
        "slow, seed 1",
        "swift, seed 2",
        "slow, seed 2",
    ]
    assert "4 runs, 0 of them done" in lines[-1]
    assert sorted(os.listdir()) == before


def call(*args: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "fedlit", "compare", *args]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, **options)


def summary(folder: str) -> pd.DataFrame:
    """What does not depend on the clock."""
    frame = pd.read_csv(Path(folder) / "summary.csv")
    return frame.drop(columns=["seconds", "seconds_to_target"])


def first_rounds(folder: str) -> dict[str, int]:
    """How often each run began with its first round."""
    counts = {}
    for events in Path(folder).rglob("events.jsonl"):
        lines = events.read_text().splitlines()
        counts[str(events)] = sum('"event": "round", "round": 1,' in line for line in lines)
    return counts


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_and_damaged_records_are_failures_of_their_runs(monkeypatch, capsys):
    """The others' results are written; the exit code is 4 where the disk was full, else 1."""
    written = []
    monkeypatch.setattr("fedlit.cli.study_call.Launcher", lambda method: Launcher(method, "fake_fit", "runs_by_hand"))
    monkeypatch.setattr("fedlit.cli.study_call.write_all", lambda results, *_: written.append(results.runs))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    write_study(rows={"good": {}, "bad": {"data.dataset": "full.npz"}, "damaged": {"model.optimizer.lr": 0.5}})
    assert compare("study.yaml", "--output", "out") == 4
    assert "fedlit: failed: bad, seed 1: " in capsys.readouterr().err
    (ledger,) = Path("out/runs/damaged").rglob("ledger.csv")
    ledger.write_text("client,bytes\n")
    assert compare("study.yaml", "--output", "out", "--only", "[dg]*") == 1
    assert re.search(r"failed: damaged, seed 1: \S*ledger.csv must begin with ", capsys.readouterr().err)
    assert [runs["status"].tolist() for runs in written] == [["done", "failed", "done"], ["done", "failed"]]
    monkeypatch.setattr("fedlit.cli.study_call.write_all", full)
    assert compare("study.yaml", "--output", "out", "--only", "good") == 4
    assert capsys.readouterr().err == "fedlit: error: out cannot be written: No space left on device; make room.\n"


@pytest.mark.slow
def test_a_killed_study_goes_on_and_two_shares_come_to_the_same(tmp_path):
    """One call; one that is killed and called again; two shares at once: the same summary, and nothing twice."""
    write_study(seeds=2)
    whole = call("study.yaml", "--output", "whole")
    assert (whole.communicate()[1], whole.returncode) == ("", 0)
    killed = call("study.yaml", "--output", "killed", start_new_session=True)
    deadline = time.monotonic() + 120
    while not list(Path("killed").rglob("last.ckpt")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    assert call("study.yaml", "--output", "killed").wait() == 0
    pd.testing.assert_frame_equal(summary("killed"), summary("whole"))
    assert set(first_rounds("killed").values()) == {1}
    shares = [call("study.yaml", "--output", "shares", "--array", f"{n}/2") for n in (1, 2)]
    assert [share.wait() for share in shares] == [0, 0]
    pd.testing.assert_frame_equal(summary("shares"), summary("whole"))
    again = call("study.yaml", "--output", "whole")
    assert again.wait() == 0
    assert set(first_rounds("whole").values()) == {1}


@pytest.mark.slow
def test_a_forked_run_ends_in_the_bits_of_a_new_process():
    ends = []
    for method in ("spawn", "forkserver"):
        options = ["fit", "--config", "swift.yaml", f"--trainer.run_name={method}"]
        with open("claim", "w") as claim:
            process = Launcher(method).start(options, Path(f"{method}.log"), claim)
        process.join()
        assert process.exitcode == 0
        state = torch.load(Path("lightning_logs", method, "checkpoints", "last.ckpt"), weights_only=True)
        ends.append([tensor.tolist() for tensor in state["global_state"].values()])
    assert ends[0] == ends[1]
