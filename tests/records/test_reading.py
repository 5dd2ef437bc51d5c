"""Records of a run that goes on: what no run has written is refused, and repeated rounds stand there once."""

import json

import pytest

from fedlit.records.reading import check_records, rewind

METRICS = "round,stage,client,model,data,metric,value\n"
LEDGER = "round,client,direction,kind,bytes\n"
EPOCHS = "round,stage,epoch,client,model,data,metric,value\n"


@pytest.fixture
def folder(tmp_path):
    """Two rounds, of which one is saved, and half a line."""
    of_metrics = [f'{number},federate,0,global,own,"f1, macro",0.5\n' for number in (1, 2)]
    (tmp_path / "metrics.csv").write_text(METRICS + "".join(of_metrics) + "2,fede")
    (tmp_path / "ledger.csv").write_text(LEDGER + "1,0,up,model,8\n2,0,up,model,8\n")
    (tmp_path / "epochs.csv").write_text(EPOCHS + "1,local,1,0,personal,own,acc,nan\n2,local,1,0,personal,own,acc,1\n")
    events = [{"event": "fit", "round": 0}, {"event": "round", "round": 1}, {"event": "left_out", "round": 2},
            {"event": "round", "round": 2}, {"event": "gave_up", "round": 3}]  # fmt: skip
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events) + '{"event": "ro')
    return tmp_path


def test_what_is_of_rounds_that_are_to_be_repeated_is_taken_out(folder):
    check_records(folder)
    rewind(folder, 1)
    assert [path.read_text().count("\n") for path in sorted(folder.glob("*.csv"))] == [2, 2, 2]
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    assert [(event["event"], event["round"]) for event in events] == [("fit", 0), ("round", 1), ("gave_up", 3)]
    check_records(folder)


JUNK = [b"hello\n",
        b"\n", b"x,federate,0,global,own,acc,0.5\n", b"1,2\n", b"1,\xff\xfe,0,global,own,acc,0.5\n", b"\0\0\n",
        b"1,federate,0,global,own,acc,high\n"]  # fmt: skip


@pytest.mark.parametrize("name", ["metrics.csv", "ledger.csv", "epochs.csv", "events.jsonl"])
@pytest.mark.parametrize("junk", JUNK)
def test_a_line_that_no_run_has_written_is_refused_by_file_and_number(name, junk, folder):
    path = folder / name
    first, second, rest = path.read_bytes().split(b"\n", 2)
    path.write_bytes(b"\n".join([first, second]) + b"\n" + junk + rest)
    with pytest.raises(ValueError, match=rf"^`--ckpt_path`: line 3 of \S*{name} is none that a run has written: '"):
        check_records(folder)


def test_other_columns_are_refused(folder):
    (folder / "ledger.csv").write_text("client,bytes\n1,2\n")
    with pytest.raises(ValueError, match=r"line 1 of \S*ledger\.csv"):
        check_records(folder)


def test_a_run_that_has_written_nothing_yet_is_fine(tmp_path):
    check_records(tmp_path)
    rewind(tmp_path, 0)
    assert (tmp_path / "metrics.csv").read_text() == METRICS
    assert not (tmp_path / "epochs.csv").exists()
