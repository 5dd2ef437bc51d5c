"""A run that cannot go on for want of clients: one line, exit code 3."""

import pytest

from fedlit.cli.app import refused_in_one_line
from fedlit.engine.scheduling import TooFewClients


def test_too_few_clients_are_told_in_one_line_with_exit_code_3(capsys):
    with pytest.raises(SystemExit) as ended, refused_in_one_line(lambda: True):
        raise TooFewClients("Every client of round 2 failed; client 0: KeyError: 'x'\nTraceback ...")
    assert ended.value.code == 3
    said = capsys.readouterr().err
    assert said.startswith("fedlit: Every client of round 2 failed; client 0: KeyError: 'x' (events.jsonl tells more")
    assert said.count("\n") == 1


def test_new_clients_who_cannot_join_leave_no_events_to_be_sent_to(capsys):
    with pytest.raises(SystemExit) as ended, refused_in_one_line(lambda: False):
        raise TooFewClients("No unseen client could join; client 4: KeyError: 'x'\nTraceback ...")
    assert ended.value.code == 3
    assert capsys.readouterr().err == (
        "fedlit: No unseen client could join; client 4: KeyError: 'x' (FEDLIT_DEBUG=1 shows where)\n"
    )
