"""The table at the end of a run shows what a user logs, and a best only of what has one."""

import functools
import io
import itertools
import sys

import pytest
from toys import SGD, fitted, linear, toy_data
from tqdm import tqdm

from fedlit import FedAvg
from fedlit.records.progress import Progress, epochs_table, table
from fedlit.records.rows import Row


class Logs(FedAvg):
    def training_step(self, batch, batch_idx):
        loss = super().training_step(batch, batch_idx)
        self.log("kd_loss", loss.detach() / 2)
        self.log("steps", 1.0, reduce_fx="sum")
        return loss


def parts(mean: float) -> dict[str, float]:
    return {"mean": mean, "min": mean, "max": mean}


def test_a_loss_that_a_method_logs_is_shown_and_that_of_every_evaluation_is_not():
    last = {"loss/global_on_own": parts(1.0)}
    last |= {"kd_loss/trained_on_train": parts(2.0), "loss/trained_on_train": parts(3.0)}
    shown = table(last).splitlines()[1:]
    assert [line.split()[:4] for line in shown] == [
        ["kd_loss", "trained", "train", "2.0000"],
        ["loss", "trained", "train", "3.0000"],
    ]


def test_what_is_measured_is_shown_above_what_a_method_logs_whichever_came_first():
    logged = {"train_loss/trained_on_train": parts(1.0), "gap/global_on_server": parts(2.0)}
    measured = {"acc/trained_on_own": parts(3.0), "loss/f1/global_on_own": parts(4.0), "acc/global_on_own": parts(5.0)}
    expected = ["acc", "loss/f1", "acc", "train_loss", "gap"]
    for last in (logged | measured, measured | logged):
        assert [line.split()[0] for line in table(last).splitlines()[1:]] == expected
        means = {key: value["mean"] for key, value in last.items()}
        assert [line.split()[0] for line in epochs_table(means, means, {}).splitlines()[1:]] == expected


def test_a_count_has_no_best_and_losses_and_metrics_have_one():
    federation = fitted(Logs(linear, SGD), toy_data(), num_rounds=2)
    board = federation.state.scores
    logged = {key.rpartition("/")[0]: key for key in board.best}
    assert {"acc", "loss", "kd_loss", "steps"} <= logged.keys()
    assert {"acc", "loss", "train_loss", "kd_loss"} == {key.rpartition("/")[0] for key in board.rated}
    lines = {line.split()[0]: line.split() for line in table(board.last, board.rated).splitlines()}
    assert len(lines["kd_loss"]) == len(lines["steps"]) + 2


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("columns", "told"), [(80, 1), (120, 2), (160, 4)])
def test_the_bar_is_whole_on_a_terminal_of_any_width(columns, told, monkeypatch):
    """Metrics that do not fit are left out; what a client would use itself comes first."""
    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr("tqdm.std.tqdm.format_dict", property(functools.partial(of_width, columns)))
    progress = Progress(total=200, done=119)
    what = [("trained", "own"), ("global", "pooled"), ("global", "own"), ("personal", "own"), ("trained", "pooled")]
    rows = [Row(120, "federate", 0, model, data, "acc", 0.7) for model, data in what]
    progress.round(120, "federate", rows, 300.0)
    progress.training(121, "client 100/100")
    line = screen.getvalue().rpartition("\r")[2]
    assert len(line) <= columns
    assert line.startswith("client 100/100:  60%|")
    assert line.endswith("]")
    assert line.count("0.7000") == told
    assert "personal on own 0.7000" in line
    progress.close()


def of_width(columns, bar):
    """As tqdm has it, after ten hours on a terminal of so many columns."""
    return {**FORMAT_DICT(bar), "ncols": columns, "elapsed": 36_000.0, "rate": 1 / 300}


FORMAT_DICT = tqdm.format_dict.fget


class Clock:
    """Ten seconds pass whenever a batch is trained."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr("fedlit.records.progress.monotonic", lambda: self.now)
        monkeypatch.setattr("fedlit.engine.fit.perf_counter", lambda: self.now)


class Slow(FedAvg):
    clock: Clock

    def training_step(self, batch, batch_idx):
        Slow.clock.now += 10.0
        return super().training_step(batch, batch_idx)


def lines_of_slow_fit(monkeypatch, capsys, **options) -> list[str]:
    Slow.clock = Clock(monkeypatch)
    fitted(Slow(linear, SGD), toy_data(), enable_progress_bar=True, fast_dev_run=False, **options)
    return capsys.readouterr().out.splitlines()


def test_where_there_is_no_bar_a_line_comes_every_half_minute(monkeypatch, capsys, tmp_path):
    options = {"num_rounds": 2, "default_root_dir": str(tmp_path), "local_epochs": 3}
    lines = lines_of_slow_fit(monkeypatch, capsys, **options)
    steps = [line for line in lines if ", step " in line]
    assert steps[:2] == ["round 1/2, client 1/3, step 3/9", "round 1/2, client 1/3, step 6/9"]
    assert "round 2/2, client 3/3, step 6/9" in steps
    assert [line for line in lines if line.startswith("about")] == [
        "about 4 min a round, 9 min for 2 rounds (from client 0; cpu)"
    ]


@pytest.mark.parametrize("client_timeout", [None, 60.0])
def test_what_a_round_will_take_is_said_where_clients_train_in_processes_of_their_own(
    client_timeout, monkeypatch, capsys
):
    clock = itertools.count(step=100.0)  # a hundred seconds pass between any two looks at it
    monkeypatch.setattr("fedlit.engine.fit.perf_counter", lambda: next(clock))
    options = {"enable_progress_bar": True, "fast_dev_run": False, "client_timeout": client_timeout}
    fitted(FedAvg(linear, SGD), toy_data(), num_rounds=1, **options)
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("about")] == [
        "about 5 min a round, 5 min for 1 round (from client 0; cpu)"
    ]


def test_local_steps_are_counted_too_and_short_rounds_print_nothing_more(monkeypatch, capsys, tmp_path):
    options = {"num_rounds": 1, "default_root_dir": str(tmp_path)}
    assert "round 1/1, client 1/3, step 3/5" in lines_of_slow_fit(monkeypatch, capsys, local_steps=5, **options)
    short = lines_of_slow_fit(monkeypatch, capsys, local_steps=1, **options)
    assert not [line for line in short if ", step " in line or line.startswith("about")]
