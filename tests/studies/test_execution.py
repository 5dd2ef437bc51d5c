"""Runs of a study: claimed, made once, resumed, shared out; here with a fit that ends at once."""

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import forkserver
from pathlib import Path

import pytest
from runs_by_hand import write_run

from fedlit.records.run_folder import lock_folder
from fedlit.studies import execution
from fedlit.studies.execution import Execution, Launcher
from fedlit.studies.measure import Measure
from fedlit.studies.runs import Run, in_order, is_finished, plan_runs
from fedlit.studies.study import build_study

FAKE = Path(__file__).parent / "fake_fit.py"


METHODS = ("spawn", "forkserver")


def launcher_of(method: str) -> Launcher:
    return Launcher(method, FAKE.stem, "runs_by_hand")


@pytest.fixture(autouse=True)
def fit_ends_at_once(monkeypatch):
    monkeypatch.setattr(execution, "PAUSE", 0.01)
    monkeypatch.setenv("PYTHONPATH", str(FAKE.parent))


@pytest.fixture(params=METHODS)
def launcher(request):
    """The two ways in which processes begin, each with a fit that ends at once."""
    return launcher_of(request.param)


def resolve(cell):
    """As the command line would resolve a cell, without it."""
    config = {
        "seed_everything": 7,
        "trainer": {"default_root_dir": "."},
        "model": {"class_path": "FedAvg", "init_args": {"optimizer": {"init_args": {"lr": 0.5}}}},
        "data": {"init_args": {"dataset": "good", "partition_seed": 0}},
    }
    for options in cell.options:
        for name, value in options.items():
            group = config["data"] if name.startswith("data.") else config["model"]
            group["init_args"][name.partition(".")[2]] = value
    return config


def planned(output, rows=None, seeds=2, **more):
    study = build_study({"recipe": "r", "rows": rows or {"a": {}, "b": {"model.alpha": 1}}, "seeds": seeds, **more})
    return plan_runs(study, output, resolve)


def make(runs, jobs=2, waits=True, launcher=None, run_timeout=None):
    launcher = launcher or launcher_of("forkserver")
    made = Execution(runs, jobs, waits, launcher, run_timeout)
    made.run()
    return made


def commands(run) -> list[str]:
    path = run.root / "calls.txt"
    return path.read_text().splitlines() if path.exists() else []


def calls(run) -> int:
    return len(commands(run))


def test_cells_that_only_measure_otherwise_share_their_runs(tmp_path):
    runs = planned(tmp_path, rows={"last": {}, "best": {"measure": {"at": "best"}}, "other": {"model.alpha": 2}})
    assert len(in_order(runs)) == 4
    last, best, other = runs.values()
    assert last == best
    assert last != other


def test_seeds_are_those_of_the_study_and_not_of_the_recipe(tmp_path):
    run = in_order(planned(tmp_path))[2]
    assert run.whole_config["seed_everything"] == 2
    assert run.whole_config["data"]["init_args"]["partition_seed"] == 2
    assert run.whole_config["trainer"]["default_root_dir"] == str(tmp_path / "runs" / "a" / "seed_2")


def test_what_is_done_is_never_run_again(launcher, tmp_path):
    runs = in_order(planned(tmp_path))
    make(runs, launcher=launcher)
    assert [run.status for run in runs] == ["done"] * 4
    make(runs, launcher=launcher)
    assert [calls(run) for run in runs] == [1, 1, 1, 1]


def test_what_was_begun_is_run_again(launcher, tmp_path):
    run = in_order(planned(tmp_path))[0]
    folder = write_run(run.root / "lightning_logs" / "version_0", [[0.5]])
    events = (folder / "events.jsonl").read_text().splitlines()
    (folder / "events.jsonl").write_text("\n".join(events[:-1]) + '\n{"event": "e')  # killed in the middle of a line
    assert run.status == "begun"
    make([run], launcher=launcher)
    assert run.status == "done"
    assert calls(run) == 1


JOINING = {"a": {"data.unseen_clients": 1}}


def test_newcomers_join_once_the_fit_is_done_and_for_as_long_as_asked(launcher, tmp_path):
    (run,) = in_order(planned(tmp_path, rows=JOINING, seeds=1, adapt=2))
    make([run], launcher=launcher)
    assert (run.status, commands(run)) == ("done", ["fit", "adapt"])
    make([run], launcher=launcher)
    assert calls(run) == 2
    (longer,) = in_order(planned(tmp_path, rows=JOINING, seeds=1, adapt=3))
    assert longer.status == "begun"
    newcomers = Measure.read({"metric": "acc/personal_on_unseen", "over": "newcomers"})
    assert longer.has(Measure())  # of rounds, which are done
    assert not longer.has(newcomers)
    assert run.has(newcomers)
    make([longer], launcher=launcher)
    assert (longer.status, commands(run)) == ("done", ["fit", "adapt", "adapt"])
    (without,) = in_order(planned(tmp_path, rows=JOINING, seeds=1))
    assert without.status == "done"


def test_adapt_needs_clients_that_are_kept_out(tmp_path):
    with pytest.raises(ValueError, match=r"^a: `adapt` needs clients that do not train; give `data\.unseen"):
        planned(tmp_path, rows={"a": {}}, seeds=1, adapt=2)


def test_where_nobody_could_join_the_run_has_failed_and_its_fit_is_not_made_again(launcher, tmp_path):
    (run,) = in_order(planned(tmp_path, rows=JOINING, seeds=1, adapt=13))
    made = make([run], launcher=launcher)
    assert made.failures[run].startswith("nobody could join (exit 1; ")
    make([run], launcher=launcher)
    assert commands(run) == ["fit", "adapt", "adapt"]


@pytest.mark.parametrize(("stopped_by", "is_done"), [("null", True), ("15", False)])
def test_a_run_that_a_signal_ended_is_not_done(stopped_by, is_done, tmp_path):
    (tmp_path / "events.jsonl").write_text(f'{{"event": "end", "round": 3, "stopped_by": {stopped_by}}}\n')
    assert is_finished(tmp_path) is is_done


def test_a_run_that_fails_leaves_the_rest_alone_and_is_tried_again_by_the_next_call(launcher, tmp_path):
    runs = in_order(planned(tmp_path, rows={"bad": {"data.dataset": "bad"}, "good": {}}, seeds=1))
    made = make(runs, launcher=launcher)
    assert [run.status for run in runs] == ["new", "done"]
    assert [*made.failures] == [runs[0]]
    assert made.failures[runs[0]].startswith("a line that says why (exit 1; all of it in ")
    make(runs, launcher=launcher)
    assert [calls(run) for run in runs] == [2, 1]


def test_a_run_of_other_options_is_not_taken_for_this_one(tmp_path):
    make(in_order(planned(tmp_path, rows={"a": {"model.alpha": 1}}, seeds=1)))
    (changed,) = in_order(planned(tmp_path, rows={"a": {"model.alpha": 2}}, seeds=1))
    with pytest.raises(
        ValueError, match=r"was run with `model.alpha` 1, and now it would be 2; give another `--output`"
    ):
        changed.check_config()


def test_a_study_may_be_moved(tmp_path):
    make(in_order(planned(tmp_path / "here", seeds=1)))
    (tmp_path / "here").rename(tmp_path / "there")
    runs = in_order(planned(tmp_path / "there", seeds=1))
    for run in runs:
        run.check_config()
    assert [run.status for run in runs] == ["done", "done"]


def test_a_run_that_another_call_holds_is_left_to_it(tmp_path):
    runs = in_order(planned(tmp_path, seeds=1))
    runs[0].root.mkdir(parents=True)
    lock = lock_folder(runs[0].root)
    made = make(runs, waits=False)
    assert [calls(run) for run in runs] == [0, 1]
    assert not made.failures
    threading.Timer(0.3, lock.close).start()
    make(runs)  # waits, and makes what the other has left
    assert [run.status for run in runs] == ["done", "done"]


def test_a_signal_ends_the_runs_that_are_under_way(launcher, tmp_path):
    runs = in_order(planned(tmp_path, rows={"a": {"data.dataset": "slow"}}))
    threading.Timer(0.5, signal.raise_signal, [signal.SIGTERM]).start()
    start = time.monotonic()
    made = make(runs, launcher=launcher)
    assert time.monotonic() - start < 20
    assert made.stopped_by == signal.SIGTERM
    assert not made.failures


@pytest.mark.parametrize("method", METHODS)
def test_the_runs_end_with_a_caller_that_was_killed(method, tmp_path):
    """The process of a run is asked to end when its caller dies of SIGKILL (on Linux)."""
    script = tmp_path / "caller.py"
    script.write_text(
        "import sys, time\n"
        f"sys.path[:0] = {[str(FAKE.parent), str(FAKE.parents[2])]}\n"
        "import test_execution as t\n"
        "rows = {'a': {'data.dataset': 'slow'}}\n"
        "if __name__ == '__main__':\n"
        f"    (run,) = t.in_order(t.planned(t.Path({str(tmp_path)!r}), rows, seeds=1))\n"
        "    run.root.mkdir(parents=True)\n"
        f"    process = t.launcher_of({method!r}).start(\n"
        "        run.arguments('fit', run.write_config()), run.root / 'fit.log', t.lock_folder(run.root)\n"
        "    )\n"
        "    while not (run.root / 'calls.txt').exists():\n"
        "        time.sleep(0.05)\n"
        "    print(process.pid, flush=True)\n"
        "    time.sleep(60)\n"
    )
    caller = subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, text=True)
    pid = int(caller.stdout.readline())
    assert Path(f"/proc/{pid}").exists()
    caller.kill()
    caller.wait()
    deadline = time.monotonic() + 10
    while Path(f"/proc/{pid}").exists() and "Z" not in Path(f"/proc/{pid}/stat").read_text().split()[2]:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def one_beside_a_good_one(tmp_path, dataset):
    return in_order(planned(tmp_path, rows={"bad": {"data.dataset": dataset}, "good": {}}, seeds=1))


def test_a_run_whose_folder_was_deleted_has_failed_and_the_others_go_on(tmp_path):
    bad, good = one_beside_a_good_one(tmp_path, "deleted")
    made = make([bad, good])
    assert made.failures == {bad: f"{bad.root} is gone: it was deleted while the run was writing it (exit 4)"}
    assert not made.is_disk_full
    assert good.status == "done"


def test_a_run_that_finds_the_disk_full_has_failed_and_the_others_go_on(tmp_path, monkeypatch):
    bad, good = one_beside_a_good_one(tmp_path / "of the run", "full.npz")
    made = make([bad, good])
    assert ([*made.failures], made.is_disk_full, good.status) == ([bad], True, "done")
    bad, good = in_order(planned(tmp_path / "of the study", seeds=1))
    write_config = Run.write_config

    def full(run):
        if run == bad:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_config(run)

    monkeypatch.setattr(Run, "write_config", full)
    made = make([bad, good])
    assert ([*made.failures], made.is_disk_full, good.status) == ([bad], True, "done")
    assert "No space left on device" in made.failures[bad]
    lock_folder(bad.root).close()  # nobody holds it


def test_where_the_process_that_is_forked_has_died_the_next_run_begins_with_another(tmp_path):
    first, second = in_order(planned(tmp_path, seeds=1))
    make([first])
    os.kill(forkserver._forkserver._forkserver_pid, signal.SIGKILL)
    made = make([first, second])
    assert not made.failures
    assert [first.status, second.status] == ["done", "done"]


def test_a_run_that_hangs_is_ended_and_has_failed(launcher, tmp_path, monkeypatch):
    """Though it does not end when it is asked to."""
    monkeypatch.setattr(execution, "GRACE", 0.1)
    bad, good = one_beside_a_good_one(tmp_path, "stuck")
    assert not make([good], launcher=launcher, run_timeout=30).failures
    made = make([bad], launcher=launcher, run_timeout=1)
    assert made.failures == {bad: "it took longer than `run_timeout`, 1 s, and was ended"}
    lock_folder(bad.root).close()  # its process is gone
