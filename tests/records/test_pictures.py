"""Pictures say what they show; they are looked at by people, and here asked for their words and sizes."""

import numpy as np
import pytest
from matplotlib.figure import Figure
from toys import SGD, fitted, linear, toy_data

from fedlit.data import FederatedData, JointData
from fedlit.methods import FML
from fedlit.partition import IID, Dirichlet, Shards
from fedlit.records.pictures import draw_curves, draw_partition
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


def test_a_mean_is_reported_to_be_of_the_clients_of_a_round(tmp_path, drawn):
    some = write(tmp_path / "some.csv", lambda r: range(2 * r, 2 * r + 2))
    every = write(tmp_path / "every.csv", lambda r: range(4))
    for path in (some, every):
        draw_curves(path, tmp_path / "x.png")
    assert labels(drawn[0].axes[0])[-1] == "mean of 2 clients a round, last 50.0 %"
    assert labels(drawn[1].axes[0])[-1] == "mean of 4 clients, last 50.0 %"


def test_pictures_name_method_data_and_run(tmp_path, drawn):
    data = toy_data(num_clients=4, unseen_clients=1, partition=Dirichlet(1.0))
    method = FML(linear, linear, SGD)
    federation = fitted(method, data, num_rounds=2, report=True, run_name="mine", default_root_dir=str(tmp_path))
    federation.adapt(method, data, epochs=1)
    partition, curves, confusion, adapted = drawn
    title = "FML on TensorDataset, Dirichlet(alpha=1.0), 4 clients: mine"
    for figure in (partition, curves):
        assert " ".join(figure.get_suptitle().split()) == title
    assert " ".join(confusion.get_suptitle().split()) == title
    assert confusion.axes[0].get_title().startswith("Global model: ")
    assert adapted.get_suptitle().endswith("new clients of mine")
    assert {axes.get_xlabel() for axes in curves.axes} == {"Round"}
    assert {axes.get_xlabel() for axes in adapted.axes} == {"Epoch"}
    assert {axes.get_ylabel() for axes in adapted.axes} == {"Accuracy on unseen clients (%)"}
    shown = {(axes.get_title(), axes.get_ylabel()) for axes in curves.axes}
    assert ("Personal model", "Accuracy on own data (%)") in shown
    assert ("Global model", "Accuracy on pooled test data (%)") in shown


def test_labels_stay_within_their_figure(tmp_path, drawn):
    """The layout is fixed, so that what is written around the axes must fit."""
    draw_curves(write(tmp_path / "m.csv", lambda r: range(12), models=("global", "personal")), tmp_path / "x.png")
    draw_partition(np.full((12, 10), 1000), tmp_path / "y.png", "A title that is longer than its figure is wide " * 3)
    for figure in drawn:
        width, height = figure.bbox.size
        for axes in figure.axes:
            box = axes.get_tightbbox()
            assert box.x0 >= 0
            assert box.y0 >= 0
            assert box.x1 <= width
            assert box.y1 <= height


def test_data_describe_themselves():
    shards = FederatedData(dataset="folder/mine.npz", num_clients=3, partition=Shards(2))
    assert shards.describe() == "mine, Shards(per_client=2), 3 clients"
    assert JointData([shards, FederatedData(num_clients=2, partition=IID())]).describe() == (
        "mine, Shards(per_client=2), 3 clients + fashion_sample, IID, 2 clients"
    )
