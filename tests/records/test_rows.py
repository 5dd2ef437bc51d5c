"""The lines of the records, and what an evaluation leaves."""

import torch

from fedlit.inference import report, write_predictions
from fedlit.records.loggers import MANY_CLIENTS, scalars
from fedlit.records.rows import Row, lines


def own(client: int, value: float) -> Row:
    return Row(1, "federate", client, "global", "own", "acc", value)


def test_a_name_that_a_user_logs_stays_in_its_cell():
    row = own(2, 0.5)._replace(metric='two\nlines, "quoted"')
    assert lines([row]) == ['1,federate,2,global,own,"two\\nlines, ""quoted""",0.5\n']


def test_clients_have_a_line_each_until_they_are_too_many():
    few = scalars([own(k, 0.5) for k in range(MANY_CLIENTS)])
    many = scalars([own(k, 0.5) for k in range(MANY_CLIENTS + 1)])
    assert "clients/acc/global_on_own/client_07" in few
    assert many.keys() == {"acc/global_on_own/mean", "range/acc/global_on_own/max", "range/acc/global_on_own/min"}


def test_predictions_name_the_class_its_probability_and_the_label(tmp_path):
    probabilities = torch.tensor([[0.25, 0.75], [1.0, 0.0]])
    path = write_predictions(tmp_path / "p.csv", probabilities, torch.tensor([1, 1]), {})
    assert path.read_text() == "index,predicted,probability,label\n0,1,0.750000,1\n1,0,1.000000,1\n"


def test_a_file_name_with_a_comma_stays_one_column(tmp_path):
    path = write_predictions(tmp_path / "p.csv", torch.tensor([[0.25, 0.75]]), None, {"file": ["a,b.png"]})
    assert path.read_text() == 'index,predicted,probability,file\n0,1,0.750000,"a,b.png"\n'


def test_a_report_says_which_round_of_which_run_and_leaves_its_rows_there(tmp_path, capsys):
    report([own(0, 0.5)], "test.csv", 4, tmp_path)
    printed = capsys.readouterr()
    assert printed.err == f"Evaluating round 4 of {tmp_path}.\n"
    assert printed.out.splitlines()[1].split() == ["acc", "global", "own", "0.5000", "0.5000", "0.5000"]
    assert (tmp_path / "test.csv").read_text() == f"{','.join(Row._fields)}\n1,federate,0,global,own,acc,0.5\n"


def test_without_a_round_or_a_folder_a_report_says_less_and_writes_nothing(tmp_path, capsys):
    report([own(0, 0.5)], "test.csv", 0, None)
    report([own(0, 0.5)], "test.csv", 4, None)
    assert capsys.readouterr().err == "Evaluating an untrained model.\nEvaluating round 4.\n"
    assert list(tmp_path.iterdir()) == []
