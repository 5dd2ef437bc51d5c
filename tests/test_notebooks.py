"""A result shows itself: a line, a table, and in a notebook a table with the curves."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from toys import SGD, linear, toy_data

from fedlit import FedAvg, Federation

QUIET = {"logger": False, "accelerator": "cpu", "num_rounds": 2}


@pytest.fixture
def cells(monkeypatch):
    """A stand-in for a kernel: what every output of a cell has shown, in order."""
    shown = []

    class Handle:
        def __init__(self, output):
            self.output = output

        def update(self, data, raw):
            self.output.append(data["text/plain"])

    def display(data, raw, display_id):
        shown.append([])
        return Handle(shown[-1])

    ipython, of_display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.version_info = (99,)  # matplotlib asks for it
    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    of_display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", of_display)
    return shown


def test_a_cell_that_fits_can_be_run_again_and_shows_one_bar_each_time(cells, capsys, tmp_path):
    federation = Federation(**QUIET, report=True, default_root_dir=str(tmp_path))
    results = [federation.fit(lambda: FedAvg(linear, SGD), toy_data()) for _ in range(2)]
    results.append(
        Federation(**QUIET, report=True, default_root_dir=str(tmp_path)).fit(FedAvg(linear, SGD), toy_data())
    )
    assert [result.folder.name for result in results] == ["version_0", "version_1", "version_2"]
    assert [row.value for row in results[0].rows] == [row.value for row in results[1].rows]
    assert len(cells) == 3
    for lines in cells:
        assert len(lines) > 2
        assert lines[-1].startswith("100%|█")
        assert "global on own " in lines[-1]
    assert "".join(capsys.readouterr()) == ""


def test_a_result_is_a_line_and_a_table(tmp_path):
    result = Federation(**QUIET, report=False, default_root_dir=str(tmp_path)).fit(FedAvg(linear, SGD), toy_data())
    assert repr(result) == f"<FitResult of FedAvg after round 2: {tmp_path}/lightning_logs/version_0>"
    first, header, *rows = str(result).splitlines()
    assert first == repr(result)
    assert header.split() == ["metric", "model", "on", "mean", "min", "max", "best", "at", "round"]
    own = [row.value for row in result.rows if (row.model, row.data, row.metric) == ("global", "own", "acc")]
    assert ["acc", "global", "own", f"{sum(own) / len(own):.4f}"] in [row.split()[:4] for row in rows]


def test_in_a_notebook_it_has_a_table_links_and_curves_where_there_are_some(tmp_path):
    for report in (True, False):
        folder = tmp_path / str(report)
        result = Federation(**QUIET, report=report, default_root_dir=str(folder)).fit(FedAvg(linear, SGD), toy_data())
        html = result._repr_html_()
        assert "<td>acc</td><td>global</td><td>own</td>" in html
        assert f'href="{result.folder}/checkpoints/last.ckpt"' in html
        assert ("data:image/png;base64," in html) == (f'href="{result.folder}/report.html"' in html) == report


def test_a_development_run_has_no_links():
    result = Federation(**QUIET, fast_dev_run=True).fit(FedAvg(linear, SGD), toy_data())
    assert "a development run" in repr(result)
    assert "<table>" in result._repr_html_()
    assert "href" not in result._repr_html_()
