import matplotlib.image
import pytest
from toy_runs import steady, study_of

from fedlit.studies.charts import draw_all
from fedlit.studies.pages import study_lock, write_all

FIGURES = ("curves_over_rounds", "curves_over_bytes", "clients")


def toy_study(path, rows=2, columns=1, **content):
    names = {"rows": {f"row {i}": {} for i in range(rows)}, "columns": {f"column {i}": {} for i in range(columns)}}

    def run_of(row, column, seeds):
        last = 0.5 + 0.05 * int(row[-1]) + 0.01 * seeds.training
        return {"values": steady(last, last + 0.1, rounds=3), "bytes_up": 0 if row == "row 1" else 1000}

    return study_of(path, {**names, "seeds": 2, **content}, run_of)


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    return toy_study(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="module")
def written(results, tmp_path_factory):
    """The study's folder, in which an earlier call had left a figure."""
    folder = tmp_path_factory.mktemp("study")
    (folder / "clients.png").write_text("of an earlier call")
    with study_lock(folder):
        write_all(results, folder, "fedlit compare")
    return folder


def test_a_study_leaves_tables_figures_and_a_page_and_nothing_of_an_earlier_question(written):
    pictures = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "pdf")}
    texts = {"runs.csv", "summary.csv", "table.md", "table.tex", "report.html"}
    assert {path.name for path in written.iterdir()} == pictures | texts | {".lock"}
    assert matplotlib.image.imread(written / "clients.png").size
    assert (written / "clients.pdf").read_bytes().startswith(b"%PDF")


def test_the_same_study_is_written_as_the_same_bytes(results, written, tmp_path):
    with study_lock(tmp_path):
        write_all(results, tmp_path, "fedlit compare")
    for path in tmp_path.iterdir():
        assert path.read_bytes() == (written / path.name).read_bytes(), path.name


@pytest.mark.parametrize(("rows", "columns"), [(2, 1), pytest.param(4, 6, marks=pytest.mark.slow)])
def test_every_panel_has_labels_and_every_row_a_line_of_its_own(tmp_path, rows, columns):
    results = toy_study(tmp_path, rows, columns, seeds=1)
    figures = dict(draw_all(results))
    assert set(figures) == set(FIGURES)
    for figure in figures.values():
        shown = [axes for axes in figure.axes if axes.axison]
        assert len(shown) == columns
        assert all(axes.get_xlabel() for axes in shown)
        assert figure.get_supxlabel()
    lines = figures["curves_over_rounds"].axes[0].lines
    assert all(axes.get_ylabel() for axes in figures["curves_over_rounds"].axes[:columns])
    assert len({(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}) == rows
    (legend,) = figures["curves_over_rounds"].legends
    assert [text.get_text() for text in legend.get_texts()] == [f"row {i}" for i in range(rows)]


def legend_of(results) -> set[str]:
    figure = dict(draw_all(results))["curves_over_rounds"]
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_a_row_whose_runs_are_not_all_done_says_so_in_the_legend(tmp_path):
    def run_of(row, column, seeds):
        if row == "$half$" and seeds.training == 2:
            return None
        return {"values": steady(0.4, 0.6)}

    results = study_of(tmp_path, {"rows": {"whole": {}, "$half$": {}}, "seeds": 2}, run_of)
    assert legend_of(results) == {"whole", "$half$ (1/2)"}
