"""The papers' tables and figures as studies: every cell can be run, and the numbers are the paper's."""

import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest

from fedlit.cli.app import main
from fedlit.cli.resolve import resolve
from fedlit.partition import Shards
from fedlit.studies.arguments import as_arguments
from fedlit.studies.study import Cell, Study, build_study, read_study

PAPERS = Path(__file__).parents[2] / "configs" / "papers"
STUDIES: dict[str, Study] = {}
for _path in sorted(PAPERS.glob("*.yaml")):
    if "\nrows:" in _path.read_text():
        STUDIES[_path.stem] = read_study(_path)
RUN_AT_ONCE = [
    ("fml_v1_table2", "FML", "MNIST MLP, pure classes"),
    ("fml_v2_fig5", "alone", "MLP"),
    ("fedmmd_fig4d", "Two-stream, L2 (0.001)", ""),
    ("fedfusion_table1", "FedFusion, multi", "(c) permuted MNIST"),
    ("moe_fig4", "Mixture", "(b) q = 0.9, p = 0.9"),
]
FEWER = ["--data.batch_size=8", "--data.partition.samples_per_client=60"]  # or DLAD takes minutes a cell


def cell(study: str, row: str, column: str) -> Cell:
    found = STUDIES[study].cell(row, column)
    assert found is not None, f"{study} has no cell {row}, {column}"
    return found


def typed(cell: Cell) -> list[str]:
    """A cell as one would type it."""
    arguments = ["fit", "--config", cell.recipe]
    for options in cell.options:
        arguments += as_arguments(options)
    return arguments


def once(cells: Iterable[Cell]) -> list[Cell]:
    """One of all cells that share their runs."""
    return list({json.dumps(typed(cell)): cell for cell in cells}.values())


def kind(cell: Cell) -> str:
    """What is built of a cell, whatever its numbers are."""
    words = [arg if "class_path" in arg else arg.partition("=")[0] for arg in typed(cell)]
    return json.dumps(words)


def named(cells: Iterable[tuple[str, Cell]]) -> list:
    return [pytest.param(cell, id=f"{name}: {cell}") for name, cell in cells]


# --- every cell can be run


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_says_how_to_run_it_and_where_its_numbers_are_from(name):
    assert (PAPERS / f"{name}.yaml").read_text().startswith(f"# fedlit compare papers/{name}.yaml --data.root FOLDER\n")
    study = STUDIES[name]
    assert "arXiv" in study.source
    assert "ssumed" in study.note or "see table 1" in study.note
    assert len(study.seeds) >= 3


SWIFT = [name for name in STUDIES if not name.startswith("dlad")]  # its networks take a second to build
LAST = [(name, STUDIES[name].cells[-1]) for name in SWIFT]  # of the last row and column, with the options of both


@pytest.mark.parametrize("cell", named(LAST))
def test_the_last_cell_is_built_by_the_command_line(cell):
    assert resolve(cell, [])["model"]["class_path"]


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDIES)
def test_every_cell_is_built_by_the_command_line(name):
    for cell in once(STUDIES[name].cells):
        resolve(cell, [])


def test_a_cell_with_an_option_that_its_method_lacks_is_not_built():
    wrong = {"recipe": "papers/fml_v2_mnist.yaml", "rows": {"FedAvg": {"model": {"class_path": "FedAvg"}}}}
    resolve(build_study(wrong).cells[0], [])
    wrong["columns"] = {"a": {"model.personal": {"class_path": "MLP"}}, "b": {"model.mu": 0.1}}
    with pytest.raises(ValueError, match=r"FedAvg, b: .*mu"):
        resolve(build_study(wrong).cells[1], [])


def run_a_round(cell: Cell, data_root: Path, monkeypatch, capsys) -> None:
    monkeypatch.setattr("sys.argv", ["fedlit"])
    fewer = FEWER if "dlad" in cell.recipe else []
    main([*typed(cell), f"--data.root={data_root}", "--trainer.fast_dev_run=true", *fewer])
    assert "round 1/" in capsys.readouterr().out


@pytest.mark.parametrize("where", RUN_AT_ONCE, ids=str)
def test_a_cell_runs(where, data_root, monkeypatch, capsys):
    run_a_round(cell(*where), data_root, monkeypatch, capsys)


KINDS = {kind(cell): (name, cell) for name, study in STUDIES.items() for cell in study.cells}


@pytest.mark.slow
@pytest.mark.parametrize("cell", named(KINDS.values()))
def test_every_kind_of_cell_runs(cell, data_root, monkeypatch, capsys):
    run_a_round(cell, data_root, monkeypatch, capsys)


# --- cells that measure the same runs


@pytest.mark.parametrize(
    ("study", "first", "second"),
    [
        ("moe_table2", ("FedAvg", "p = 0.9"), ("Mixture", "p = 0.9")),
        ("fedfusion_table2", ("FedFusion, conv", "94 %"), ("FedFusion, conv", "95 %")),
        ("dlad_table2", ("Client", "MNIST, IID"), ("Global (DLAD)", "MNIST, IID")),
        ("fml_v2_fig5", ("FML", "MLP"), ("FML", "CNN1")),
    ],
)
def test_cells_that_differ_in_what_they_measure_share_their_runs(study, first, second):
    one, other = cell(study, *first), cell(study, *second)
    assert typed(one) == typed(other)
    assert one.measure != other.measure


def test_cells_of_other_options_do_not_share_theirs():
    one, other = cell("moe_table2", "FedAvg", "p = 0.9"), cell("moe_table2", "FedAvg", "p = 0.8")
    assert typed(one) != typed(other)
    assert one.measure == other.measure


@pytest.mark.parametrize(("figure", "table"), [("fml_v2_fig4", "fml_v2_table1")])
def test_a_figure_of_a_tables_runs_has_its_cells(figure, table):
    assert [typed(cell) for cell in STUDIES[figure].cells] == [typed(cell) for cell in STUDIES[table].cells]


# --- both readings of FML's shards

MNIST = np.repeat(np.arange(10), [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949])


def classes_of_clients(column: str) -> list[set[int]]:
    config = resolve(cell("fml_v2_table1", "FedAvg", column), [])
    partition = Shards(**config["data"]["init_args"]["partition"]["init_args"])
    return [set(MNIST[part].tolist()) for part in partition.assign(MNIST, 5, 10, seed=1)]


def test_pure_classes_are_two_digits_for_each_client_and_no_overlap():
    classes = classes_of_clients("MNIST MLP, non-IID(3), pure classes")
    assert [len(own) for own in classes] == [2] * 5
    assert set.union(*classes) == set(range(10))


def test_equal_shards_of_mnist_straddle_digits():
    classes = classes_of_clients("MNIST MLP, non-IID(3)")
    assert max(len(own) for own in classes) > 2
    assert sum(len(own) for own in classes) > 10


# --- the papers' numbers, and what they say of each other


@pytest.mark.parametrize(
    ("study", "row", "column", "number"),
    [
        ("fml_v1_table1", "FedAvg", "MNIST MLP", 98.27),
        ("fml_v1_table1", "FML", "CIFAR10 CNN2", 82.66),
        ("fml_v1_table1", "FML", "CIFAR100 ResNet18", 57.43),
        ("fml_v1_table2", "FML", "MNIST MLP", 91.10),
        ("fml_v1_table2", "FML", "MNIST MLP, pure classes", 91.10),
        ("fml_v1_table2", "FedAvg", "CIFAR100 ResNet18", 21.29),
        ("fml_v2_table1", "FedAvg", "MNIST MLP, IID", 98.44),
        ("fml_v2_table1", "FedProx", "MNIST MLP, non-IID(3), pure classes", 80.03),
        ("fml_v2_table1", "FML", "MNIST LeNet5, non-IID(3)", 96.70),
        ("fml_v2_table1", "FedProx", "CIFAR100 CNN1, IID", 32.41),
        ("fml_v2_table1", "FML", "CIFAR10 CNN1, non-IID(1)", 80.86),
        ("fml_v2_table1", "FML", "CIFAR100 CNN2, non-IID(3)", 51.86),
        ("fedmmd_fig4a", "FedMMD", "", 260),
        ("fedmmd_fig4d", "FedAvg", "", 128),
        ("fedfusion_table1", "FedFusion, multi", "(d) CIFAR10, IID", 82.95),
        ("fedfusion_table1", "FedFusion, conv", "(c) permuted MNIST", 95.79),
        ("fedfusion_table2", "FedFusion, conv", "94 %", 34),
        ("moe_table2", "Mixture", "p = 1.0", 86.45),
        ("moe_table2", "Local", "p = 0.8", 65.66),
        ("dlad_table2", "Global (labeled)", "MNIST, NIID1", 0.9868),
        ("dlad_table2", "Global (DLAD)", "CINIC-10, NIID3", 0.5934),
        ("dlad_table2", "Client", "CIFAR-10, NIID2", 0.4267),
        ("dlad_table3", "Global (avg.)", "mixed clients, DenseNet", 0.2239),
        ("dlad_table3", "Global (DLAD)", "DenseNet clients, ResNet", 0.5856),
        ("dlad_table4", "Global (DLAD)", "NIID1, DenseNet, N = 5", 0.4725),
        ("dlad_table4", "Global (avg.)", "NIID2, mixed, N = 30", 0.4199),
        ("dlad_table4", "Client", "NIID3, DenseNet, N = 20", 0.3237),
    ],
)
def test_the_papers_number_stands_in_its_cell(study, row, column, number):
    assert cell(study, row, column).paper == number


def paper(study: str, row: str) -> list[float]:
    return [cell.paper for cell in STUDIES[study].cells if cell.row == row]


def columns_behind(study: str, row: str, other: str) -> list[str]:
    numbers = zip(STUDIES[study].columns, paper(study, row), paper(study, other), strict=True)
    return [column for column, one, two in numbers if one < two]


def test_fml_is_behind_fedavg_in_five_cells_of_v2_and_in_one_of_v1():
    assert columns_behind("fml_v2_table1", "FML", "FedAvg") == [
        "CIFAR10 CNN1, non-IID(2)",
        "CIFAR10 CNN1, non-IID(3)",
        "CIFAR10 CNN2, IID",
        "CIFAR10 CNN2, non-IID(2)",
        "CIFAR100 CNN2, non-IID(2)",
    ]
    assert columns_behind("fml_v1_table1", "FML", "FedAvg") == []
    assert columns_behind("fml_v1_table2", "FML", "FedAvg") == ["CIFAR100 ResNet18"]


def reductions(study: str, row: str) -> list[float]:
    """By how many per cent the rounds are fewer than FedAvg's."""
    pairs = zip(paper(study, row), paper(study, "FedAvg"), strict=True)
    return [round(100 * (1 - rounds / reference), 1) for rounds, reference in pairs]


def test_rounds_give_the_reductions_that_the_papers_print():
    assert reductions("fedmmd_fig4a", "FedMMD") == [20.2]
    assert reductions("fedfusion_table2", "FedFusion, single") == [13.0, 11.3]
    assert reductions("fedfusion_table2", "FedFusion, multi") == [22.0, 21.5]
    assert reductions("fedfusion_table2", "FedFusion, conv") == [66.0, 64.1]


def test_the_number_of_fedmmd_that_contradicts_itself_is_not_quoted():
    assert cell("fedmmd_fig4d", "FedMMD", "").paper is None
    assert round(100 * (1 - 72 / 128), 1) != 23.4 == round(100 * (1 - 98 / 128), 1)


@pytest.mark.parametrize("setting", ["NIID1", "NIID2", "NIID3"])
def test_mixed_clients_of_dlad_are_five_of_the_resnets_and_the_later_five_densenets(setting):
    number = {}
    for network in ("ResNet, N = 5", "DenseNet, N = 5", "DenseNet, N = 10", "mixed, N = 10"):
        number[network] = cell("dlad_table4", "Client", f"{setting}, {network}").paper
    later_densenets = 2 * number["DenseNet, N = 10"] - number["DenseNet, N = 5"]
    assert number["mixed, N = 10"] == pytest.approx((number["ResNet, N = 5"] + later_densenets) / 2, abs=1e-4)


def test_labeled_is_average_for_dlads_iid_clients_on_cinic10():
    assert cell("dlad_table2", "Global (labeled)", "CINIC-10, IID").paper == 0.6256
    assert cell("dlad_table2", "Global (avg.)", "CINIC-10, IID").paper == 0.6256


# --- the page that tells of them


def test_the_page_of_the_papers_tells_of_every_study_and_of_no_other():
    lines = (PAPERS.parents[1] / "docs" / "papers.md").read_text().splitlines()
    told = {}
    for line in lines:
        if line.startswith("| `"):
            _, study, _, size, *_ = line.split("|")
            told[study.strip(" `")] = size.strip()
    sizes = {name: f"{len(once(study.cells))} x {len(study.seeds)}" for name, study in STUDIES.items()}
    assert told == {f"papers/{name}.yaml": size for name, size in sizes.items()}
