"""How a run ends that is asked to, or that has too few clients: its exit code, and a line."""

import signal
import sys
from pathlib import Path

import pytest
from toy_recipe import write_recipe

from fedlit.cli.app import main

OWN = """
import signal

from fedlit import FedAvg
from fedlit.callbacks import FederationCallback


class Ends(FederationCallback):
    def __init__(self, number: int) -> None:
        self.number = number

    def on_round_start(self, federation, module, round, clients):
        signal.raise_signal(self.number)


def moody(uploads, current):
    raise KeyError("no such rule")


class Breaks(FedAvg):
    def on_client_start(self, client):
        if client.id == 2:
            raise KeyError("x")
"""


@pytest.fixture(autouse=True)
def _recipe_here(_own_folder, monkeypatch):
    write_recipe()
    write_recipe("breaks.yaml", ("fedlit.methods.FedAvg", "own_endings.Breaks"))
    Path("own_endings.py").write_text(OWN)
    monkeypatch.delitem(sys.modules, "own_endings", raising=False)


def ending(*args: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main([*args])
    return ended.value.code


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_the_exit_code(number):
    callback = ["--trainer.callbacks=own_endings.Ends", f"--trainer.callbacks.number={int(number)}"]
    assert ending("fit", "--config", "run.yaml", *callback) == 128 + number


def test_too_few_clients_are_reported_in_one_line_with_exit_code_3(capsys):
    assert ending("fit", "--config", "breaks.yaml", "--trainer.min_clients=3") == 3
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(
        "fedlit: Only 2 of the 3 clients of round 1 were usable, 3 are needed; client 2: KeyError: 'x'"
    )
    assert "see events.jsonl" in said


def test_a_rule_that_raises_is_reported_in_one_line_with_exit_code_3(capsys):
    assert ending("fit", "--config", "run.yaml", "--trainer.aggregator=own_endings.moody") == 3
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith("fedlit: `trainer.aggregator` moody could not combine the 3 uploads of round 1: KeyError")


def test_new_clients_who_cannot_join_are_reported_likewise(capsys):
    unseen = ["--config", "breaks.yaml", "--data.unseen_clients=1"]
    main(["fit", *unseen])
    capsys.readouterr()
    assert ending("adapt", *unseen, "--ckpt_path=last") == 3
    assert "No unseen client could join; client 2: KeyError: 'x'" in capsys.readouterr().err
