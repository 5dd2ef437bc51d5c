"""Pictures say what they show; they are looked at by people, and here asked for their words and sizes."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from toys import SGD, fitted, linear, toy_data

from fedlit.data import FederatedData, JointData
from fedlit.data.in_words import in_words
from fedlit.methods import FML
from fedlit.partition import IID, Dirichlet, Shards
from fedlit.records.pictures import draw_confusion, draw_curves, draw_partition
from fedlit.records.rows import Row, lines

HEADER = "round,stage,client,model,data,metric,value\n"


@pytest.fixture
def drawn(monkeypatch):
    """Figures that were saved, the last of them last."""
    figures = []
    as_ever = Figure.savefig

    def note(figure, *args, **options):
        figures.append(figure)
        as_ever(figure, *args, **options)

    monkeypatch.setattr(Figure, "savefig", note)
    return figures


def write(path, clients, rounds=(1, 2), models=("global",)):
    """A metrics.csv; `clients` of each round."""
    rows = [Row(r, "s", k, m, "own", "acc", 0.5) for r in rounds for m in models for k in clients(r)]
    path.write_text(HEADER + "".join(lines(rows)))
    return path


def labels(axes):
    return axes.get_legend_handles_labels()[1]


def test_a_mean_is_told_to_be_of_the_clients_of_a_round(tmp_path, drawn):
    some = write(tmp_path / "some.csv", lambda r: range(2 * r, 2 * r + 2))
    every = write(tmp_path / "every.csv", lambda r: range(4))
    for path in (some, every):
        draw_curves(path, tmp_path / "x.png")
    assert labels(drawn[0].axes[0])[-1] == "mean of 2 clients a round, last 0.500"
    assert labels(drawn[1].axes[0])[-1] == "mean of 4 clients, last 0.500"


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


@pytest.mark.parametrize(("models", "size"), [(1, (1, 1)), slow(3, (3, 1)), (5, (3, 2)), slow(7, (3, 3))])
def test_panels_stand_in_rows_of_three(models, size, tmp_path):
    names = [f"model{i}" for i in range(models)]
    draw_curves(write(tmp_path / "m.csv", lambda r: range(3), models=names), tmp_path / "x.png")
    columns, rows = size
    assert Image.open(tmp_path / "x.png").size == (int(4.2 * 110 * columns), int(3.6 * 110 * rows))


def test_what_was_measured_once_is_compared_below_where_there_is_no_room_beside(tmp_path, drawn):
    path = write(tmp_path / "m.csv", lambda r: range(3), models=["a", "b", "c", "d"])
    once = [Row(2, "s", k, "local", "own", "acc", 0.4) for k in range(3)]
    path.write_text(path.read_text() + "".join(lines(once)))
    draw_curves(path, tmp_path / "x.png")
    *curves, last = drawn[0].axes
    assert len(curves) == 4
    assert last.get_title() == "all models in the end"
    assert [tick.get_text() for tick in last.get_xticklabels()][-1] == "local\non own"
    assert last.get_position().y0 < curves[0].get_position().y0


def test_pictures_name_method_data_and_run(tmp_path, drawn):
    data = toy_data(num_clients=4, unseen_clients=1, partition=Dirichlet(1.0))
    method = FML(linear, linear, SGD)
    federation = fitted(method, data, num_rounds=2, report=True, run_name="mine", default_root_dir=str(tmp_path))
    federation.adapt(method, data, epochs=1)
    partition, curves, confusion, adapted = drawn
    told = "FML on TensorDataset, Dirichlet(alpha=1.0), 4 clients: mine"
    for figure in (partition, curves):
        assert " ".join(figure.get_suptitle().split()) == told
    assert " ".join(confusion.axes[0].get_title().split()).startswith(told + " global model: ")
    assert adapted.get_suptitle().endswith("new clients of mine")
    assert {axes.get_xlabel() for axes in curves.axes} == {"round"}
    assert {axes.get_xlabel() for axes in adapted.axes} == {"epoch"}
    assert {axes.get_ylabel() for axes in (*curves.axes, *adapted.axes)} == {"accuracy"}


def test_dots_have_a_legend_of_sizes(tmp_path, drawn):
    draw_partition(np.array([[3, 0], [437, 12]]), tmp_path / "x.png", "mnist")
    assert labels(drawn[0].axes[0]) == ["50", "200", "437"]
    dots, *legend = drawn[0].axes[0].collections
    assert dots.get_sizes().max() == legend[-1].get_sizes().max()  # of as many samples


def test_a_confusion_matrix_keeps_its_square_below_a_title(tmp_path, drawn):
    (tmp_path / "c.csv").write_text("label,predicted,samples\n0,0,3\n0,1,1\n1,0,0\n1,1,4\n")
    for title in ("", "FML on a data set with a long name, and more to be said of it than fits: mine"):
        draw_confusion(tmp_path / "c.csv", tmp_path / "x.png", title)
    for figure in drawn:
        box = figure.axes[0].get_position()
        width, height = figure.get_size_inches()
        assert box.width * width == pytest.approx(box.height * height)


def test_data_in_words():
    shards = FederatedData(dataset="folder/mine.npz", num_clients=3, partition=Shards(2))
    assert in_words(shards) == "mine, Shards(per_client=2), 3 clients"
    assert in_words(JointData([shards, FederatedData(num_clients=2, partition=IID())])) == (
        "mine, Shards(per_client=2), 3 clients + fashion_sample, IID, 2 clients"
    )
