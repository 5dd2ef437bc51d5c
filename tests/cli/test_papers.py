"""The papers' tables and figures as studies: every cell can be run, and the numbers are the paper's."""

import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from fedlit.cli.app import main
from fedlit.cli.study_call import as_arguments, resolve
from fedlit.studies.study import Cell, Study, build_study, read_study

PAPERS = Path(__file__).parents[2] / "configs" / "papers"
STUDIES: dict[str, Study] = {}
for _path in sorted(PAPERS.glob("*.yaml")):
    if "\nrows:" in _path.read_text():
        STUDIES[_path.stem] = read_study(_path)
RUN_AT_ONCE = [
    ("fml_v1_table2", "FML", "MNIST MLP, pure classes"),
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


SWIFT = ("fml_v2_table1", "fedfusion_table2", "moe_table2")  # every cell of all studies is slow
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


def run_a_round(cell: Cell, data_root: Path, capsys) -> None:
    fewer = FEWER if "dlad" in cell.recipe else []
    main([*typed(cell), f"--data.root={data_root}", "--trainer.fast_dev_run=true", *fewer])
    assert "round 1/" in capsys.readouterr().out


@pytest.mark.parametrize("where", RUN_AT_ONCE, ids=str)
def test_a_cell_runs(where, data_root, capsys):
    run_a_round(cell(*where), data_root, capsys)


KINDS = {kind(cell): (name, cell) for name, study in STUDIES.items() for cell in study.cells}


@pytest.mark.slow
@pytest.mark.parametrize("cell", named(KINDS.values()))
def test_every_kind_of_cell_runs(cell, data_root, capsys):
    run_a_round(cell, data_root, capsys)


# --- the page that tells of them


def test_the_page_of_the_papers_lists_every_study_and_of_no_other():
    lines = (PAPERS.parents[1] / "docs" / "papers.md").read_text().splitlines()
    listed = {}
    for line in lines:
        if line.startswith("| `"):
            _, study, _, size, *_ = line.split("|")
            listed[study.strip(" `")] = size.strip()
    sizes = {name: f"{len(once(study.cells))} x {len(study.seeds)}" for name, study in STUDIES.items()}
    assert listed == {f"papers/{name}.yaml": size for name, size in sizes.items()}
