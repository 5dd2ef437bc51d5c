"""A run's metrics as a data frame are its file, line by line."""

import math
import sys

import pytest
from toys import SGD, fitted, linear, rows

import fedlit
from fedlit import FedAvg
from fedlit.records.rows import Row

pd = pytest.importorskip("pandas")
HEADER = ",".join(Row._fields) + "\n"


def test_the_frame_is_the_file(tmp_path):
    federation = fitted(FedAvg(linear, SGD), num_rounds=2, default_root_dir=str(tmp_path))
    frame = fedlit.read_metrics(federation.log_dir)
    written = rows(federation)
    assert list(frame.columns) == list(Row._fields)
    assert len(frame) == len(written)
    for name in ("stage", "model", "data", "metric"):
        assert frame[name].tolist() == [line[name] for line in written]
    assert frame["round"].tolist() == [int(line["round"]) for line in written]
    assert frame["value"].tolist() == [float(line["value"]) for line in written]
    assert frame["client"].isna().tolist() == [line["client"] == "all" for line in written]
    assert frame["client"].dropna().tolist() == [int(line["client"]) for line in written if line["client"] != "all"]


def test_numbers_are_numbers_and_what_is_nobodys_is_missing(tmp_path):
    lines = ["1,NA,all,global,pooled,acc,0.125\n", "1,NA,3,global,own,loss,nan\n", "2,NA,3,global,own,loss,inf\n"]
    (tmp_path / "metrics.csv").write_text(HEADER + "".join(lines) + "2,NA,4,glo")  # the last one is being written
    frame = fedlit.read_metrics(tmp_path)
    assert frame.dtypes.astype(str).to_dict() == {
        "round": "int64",
        "stage": "string",
        "client": "Int64",
        "model": "string",
        "data": "string",
        "metric": "string",
        "value": "float64",
    }
    assert frame["client"][0] is pd.NA
    assert frame["client"].tolist()[1:] == [3, 3]
    assert frame["stage"].tolist() == ["NA", "NA", "NA"]
    assert frame["value"][0] == 0.125
    assert math.isnan(frame["value"][1])
    assert frame["value"][2] == math.inf


def test_a_run_without_rounds_is_an_empty_frame(tmp_path):
    (tmp_path / "metrics.csv").write_text(HEADER)
    frame = fedlit.read_metrics(tmp_path)
    assert frame.empty
    assert frame["value"].dtype == "float64"


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^`run` must be the folder of a run, got .*: there is no .*metrics.csv"):
        fedlit.read_metrics(tmp_path)
    (tmp_path / "metrics.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"metrics.csv must begin with 'round,stage,client,.*', got 'a,b'"):
        fedlit.read_metrics(tmp_path)


def test_without_pandas_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"needs pandas; install it by: pip install 'fedlit\[report\]'"):
        fedlit.read_metrics(tmp_path)
