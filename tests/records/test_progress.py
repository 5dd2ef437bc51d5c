"""The table at the end of a run shows what a user logs, and a best only of what has one."""

import functools
import io
import sys

import pytest
from toys import SGD, fitted, linear, toy_data
from tqdm import tqdm

from fedlit import FedAvg
from fedlit.records.progress import Progress, score_rows, table
from fedlit.records.rows import Row


def parts(mean: float) -> dict[str, float]:
    return {"mean": mean, "min": mean, "max": mean}


def test_a_loss_that_a_method_logs_is_shown_and_that_of_every_evaluation_is_not():
    last = {"loss/global_on_own": parts(1.0)}
    last |= {"kd_loss/trained_on_train": parts(2.0), "loss/trained_on_train": parts(3.0)}
    shown = table(score_rows(last)).splitlines()[1:]
    assert [line.split()[:4] for line in shown] == [
        ["kd_loss", "trained", "train", "2.0000"],
        ["loss", "trained", "train", "3.0000"],
    ]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize(("columns", "shown"), [(80, 1), (120, 2), (160, 4)])
def test_the_bar_is_whole_on_a_terminal_of_any_width(columns, shown, monkeypatch):
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
    assert line.count("0.7000") == shown
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
