"""What the README and the page on running experiments show runs as printed."""

import re
import shlex
import sys
from contextlib import nullcontext
from functools import partial

import numpy as np
import printed
import pytest
import yaml
from printed import ROOT

from fedlit import methods
from fedlit.cli import command
from fedlit.cli.app import main
from fedlit.cli.methods import card_of, methods_of

README = (ROOT / "README.md").read_text()
OWN = {method.__name__: method for method in methods_of(methods)}
readme = partial(printed.blocks, "README.md")
running = partial(printed.blocks, "docs/running.md")
ONE_ROUND = ["--trainer.num_rounds", "1", "--trainer.limit_train_batches", "2"]
ONE_ROUND += ["--trainer.logger", "false", "--trainer.report", "false"]  # pictures take longer than the round
SHORT = [*ONE_ROUND, "--trainer.fraction_fit", "0.2"]


@pytest.fixture
def command_line(monkeypatch):
    """fedlit as from a shell: arguments and path are the test's own."""
    monkeypatch.setattr("sys.argv", ["fedlit"])
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "my_methods", raising=False)
    return main


def commands(block: str) -> list[str]:
    """The commands of a block that are fedlit's, without their comments."""
    return [line.split("  #")[0] for line in block.splitlines() if line.startswith("fedlit")]


def called(line: str, monkeypatch, *more: str) -> None:
    monkeypatch.setattr("sys.argv", [*shlex.split(line), *more])
    command.main()


# --- the README


def test_the_python_of_the_readme_and_its_command_give_the_same_metrics(command_line, tmp_path, monkeypatch):
    ten_lines, samples = readme("python")[0], readme("python")[2]
    assert len([line for line in ten_lines.splitlines() if line and "import" not in line]) <= 10
    short = "num_rounds=1, limit_train_batches=2, logger=False, report=False, run_name='python'"
    names: dict = {}
    printed.run(ten_lines.replace("num_rounds=15", short), "README.md", names)
    printed.run(samples, "README.md", names)
    assert names["result"].network(client=3) is not names["result"].network(client=2)
    [line] = commands(readme("bash")[2])
    command_line([*shlex.split(line)[1:], *ONE_ROUND, "--trainer.run_name", "command"])
    metrics = [(tmp_path / "lightning_logs" / run / "metrics.csv").read_text() for run in ("python", "command")]
    assert metrics[0] == metrics[1]


def test_the_method_in_the_readme_runs_by_its_command(command_line, tmp_path, capsys):
    (tmp_path / "my_methods.py").write_text(readme("python")[1])
    [line] = commands(readme("bash")[4])
    command_line([*shlex.split(line)[1:], *SHORT])
    assert "personal on own" in capsys.readouterr().out
    ledger = (tmp_path / "lightning_logs/version_0/ledger.csv").read_text().splitlines()[1:]
    lenet_28 = 4 * 44_426  # the bias would make it 40 more
    assert {int(line.rsplit(",", 1)[1]) for line in ledger} == {lenet_28}


def test_the_commands_in_the_readme_run_in_their_order(command_line, tmp_path, monkeypatch):
    lines = commands(readme("bash")[3])
    for line in lines:
        called(line, monkeypatch, *(SHORT if " fit " in line else []))
    assert len(lines) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"lightning_logs", "partition.png"}


def test_the_figure_of_the_readme_is_made_by_a_command_that_can_be_run(command_line, monkeypatch, capsys):
    [line] = commands(readme("bash")[1])
    with pytest.raises(SystemExit, match="0"):
        called(line, monkeypatch, "--dry-run")
    assert "0 of them done" in capsys.readouterr().out


def table_of_methods() -> dict[str, list[str]]:
    section = README[README.index("## Methods") : README.index("## Your own method")]
    rows = re.findall(r"^\| (.+) \|$", section, flags=re.MULTILINE)
    cells = [row.split(" | ") for row in rows if not row.startswith("method")]
    return {re.sub(r"^\[(\w+)\].*", r"\1", first): [first, *rest] for first, *rest in cells}


def test_the_readme_names_every_method_and_no_other():
    assert table_of_methods().keys() == OWN.keys()


@pytest.mark.parametrize("name", OWN)
def test_the_readme_links_to_the_paper_and_names_a_recipe_of_a_method(name):
    card = card_of(OWN[name])
    first, _idea, _sends, _personal, recipe = table_of_methods()[name]
    assert first == (f"[{name}]({card.link})" if card.paper else name)
    assert recipe == f"`{card.recipes[0]}`"


# --- running experiments


@pytest.mark.parametrize("shorter", [SHORT, pytest.param(["--trainer.num_rounds", "1"], marks=pytest.mark.slow)])
def test_commands_run_in_their_order(shorter, command_line):
    lines = commands(running("bash")[0])
    for line in lines:
        short = [] if "--help" in line else shorter
        with nullcontext() if short else pytest.raises(SystemExit, match="0"):
            command_line([*shlex.split(line)[1:], *short])
    assert len(lines) == 7


def test_the_commands_for_before_and_after_run_in_their_order(command_line, tmp_path, monkeypatch):
    command_line(["fit", "--config", "fedavg_fashion.yaml", *SHORT])
    np.savez("my.npz", images=np.zeros((2, 28, 28), np.uint8))
    lines = commands(running("bash")[1])
    for line in lines:
        called(line, monkeypatch)
    assert len(lines) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"lightning_logs", "my.npz", "partition.png"}
    written = {path.name for path in (tmp_path / "lightning_logs/version_0").iterdir()}
    assert {"predictions_global_my.csv", "network_global.torchscript.pt"} <= written


@pytest.mark.parametrize("columns", ["MNIST MLP, IID", pytest.param("MNIST MLP*", marks=pytest.mark.slow)])
def test_the_comparisons_can_be_run(columns, command_line, monkeypatch, capsys):
    lines = [line for line in commands(running("bash")[2]) if " compare " in line]
    for line in lines:
        with pytest.raises(SystemExit, match="0"):
            called(line.replace("MNIST MLP*", columns), monkeypatch, "--dry-run")
        assert "0 of them done" in capsys.readouterr().out
    assert len(lines) == 2


def test_the_python_of_the_page_runs_as_printed(capsys):
    printed.run(running("python")[0], "docs/running.md", {})
    assert "dict_keys(['network.weight', 'network.bias'])" in capsys.readouterr().out


def test_the_recipe_for_clients_that_differ_runs_as_printed(command_line, tmp_path):
    [recipe] = running("yaml")
    assert {"model", "data", "trainer"} <= yaml.safe_load(recipe).keys()
    (tmp_path / "differ.yaml").write_text(recipe)
    command_line(["fit", "--config", "differ.yaml", *ONE_ROUND])
    assert (tmp_path / "lightning_logs/version_0/checkpoints/last.ckpt").exists()


# --- every page

PAGES = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/**/*.md")))]
PYTHON = [pytest.param(block, id=page) for page in PAGES for block in printed.blocks(page, "python")]


@pytest.mark.parametrize("block", PYTHON)
def test_what_a_page_prints_imports_fedlit_before_what_imports_torchvision(block):
    imported = re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE)
    first = [name for name in imported if name in ("fedlit", "lightning", "torchvision")]
    # beside a torch for CPUs, torchvision's wheel cannot be imported but after fedlit
    assert first[:1] not in (["lightning"], ["torchvision"])
