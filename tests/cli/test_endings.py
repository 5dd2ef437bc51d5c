"""How a run ends that is told to, or that loses a process: its exit code, and a line."""

import signal
import sys

import pytest
from toy_recipe import write_recipe

from fedlit.cli.app import main
from fedlit.engine.cluster.liveness import ProcessLost
from fedlit.engine.fit import Fit


@pytest.fixture(autouse=True)
def _command_line(_own_folder, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["fedlit"])
    monkeypatch.setattr(sys, "path", [*sys.path])
    write_recipe()


def ending(monkeypatch, what) -> int:
    """The exit code of a fit to which something happens in its first round."""
    one_round = Fit._one_round

    def with_a_surprise(fit, number):
        what()
        one_round(fit, number)

    monkeypatch.setattr(Fit, "_one_round", with_a_surprise)
    with pytest.raises(SystemExit) as ended:
        main(["fit", "--config", "run.yaml"])
    return ended.value.code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_the_exit_code(number, monkeypatch):
    assert ending(monkeypatch, lambda: signal.raise_signal(number)) == 128 + number


@pytest.mark.parametrize(("is_ours", "line"), [(True, "fedlit: error: rank 1 is gone\n"), (False, "")])
def test_a_lost_process_is_told_by_one_in_a_line(is_ours, line, monkeypatch, capsys):
    def lose():
        raise ProcessLost("rank 1 is gone", is_ours)

    assert ending(monkeypatch, lose) == 3
    assert capsys.readouterr().err == line
