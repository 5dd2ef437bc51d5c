"""Old names go on working for a release: a note in one line, and the run as ever."""

import warnings
from pathlib import Path

import pytest
from lightning.pytorch.utilities import rank_zero_only
from toy_recipe import write_recipe
from toys import equal

from fedlit.cli.app import main, notices_in_one_line
from fedlit.notices import Notice
from fedlit.records import checkpoint

DATA = "{dataset: toy.npz, num_clients: 3, batch_size: 8"
OLD = {
    "`model.monitor` of FineTuned is now `model.stop_on`.": [
        ("FedAvg", "FineTuned"),
        ("    optimizer:", "    monitor: loss\n    optimizer:"),
    ],
}


@pytest.mark.parametrize("message", OLD)
def test_an_old_recipe_runs_with_a_note_and_again_from_its_saved_config(message, capsys):
    write_recipe("old.yaml", *OLD[message])
    main(["fit", "--config", "old.yaml"])
    assert capsys.readouterr().err == f"fedlit: note: {message}\n"
    main(["fit", "--config", "lightning_logs/version_0/config.yaml"])
    states = [checkpoint.load(Path(f"lightning_logs/version_{n}/checkpoints/last.ckpt")) for n in (0, 1)]
    assert equal(states[0]["global_state"], states[1]["global_state"])
    assert states[0]["last"] == states[1]["last"]


def test_a_recipe_with_the_new_names_runs_without_a_word(capsys):
    write_recipe("new.yaml", (DATA + "}", DATA + ", validation: reserve}"))
    main(["fit", "--config", "new.yaml"])
    assert capsys.readouterr().err == ""


def test_a_notice_is_said_once_and_by_the_first_process_alone(capsys, monkeypatch):
    for rank in (0, 1):
        monkeypatch.setattr(rank_zero_only, "rank", rank)
        with notices_in_one_line():
            for _ in range(2):
                warnings.warn("`old` is now `new`.", Notice, stacklevel=1)
    assert capsys.readouterr().err == "fedlit: note: `old` is now `new`.\n"


def test_warnings_of_others_are_shown_as_ever(capsys):
    with pytest.warns(UserWarning, match="of another library"), notices_in_one_line():
        warnings.warn("of another library", UserWarning, stacklevel=1)
    assert capsys.readouterr().err == ""
