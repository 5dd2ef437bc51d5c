"""What the README shows runs as printed."""

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

from fedlit.cli import command
from fedlit.cli.app import main

README = (ROOT / "README.md").read_text()
blocks = partial(printed.blocks, "README.md")
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


def test_the_method_in_the_readme_runs_with_its_recipe_as_printed(command_line, tmp_path, capsys):
    (tmp_path / "my_methods.py").write_text(blocks("python")[0])
    (tmp_path / "own_bias.yaml").write_text(blocks("yaml")[0])
    command_line(["fit", "--config", "own_bias.yaml", *SHORT])
    assert "personal on own" in capsys.readouterr().out
    ledger = (tmp_path / "lightning_logs/version_0/ledger.csv").read_text().splitlines()[1:]
    lenet_28 = 4 * 44_426  # the bias would make it 40 more
    assert {int(line.rsplit(",", 1)[1]) for line in ledger} == {lenet_28}


PAGES = ["README.md", *(str(page.relative_to(ROOT)) for page in sorted(ROOT.glob("docs/**/*.md")))]
PYTHON = [pytest.param(block, id=page) for page in PAGES for block in printed.blocks(page, "python")]


@pytest.mark.parametrize("block", PYTHON)
def test_what_a_page_prints_imports_fedlit_before_what_imports_torchvision(block):
    imported = re.findall(r"^(?:from|import) (\w+)", block, re.MULTILINE)
    first = [name for name in imported if name in ("fedlit", "lightning", "torchvision")]
    assert first[:1] != [
        "lightning"
    ]  # beside a torch for CPUs, torchvision's wheel cannot be imported but after fedlit
    assert first[:1] != ["torchvision"]


def test_the_python_in_the_readme_runs_as_printed(capsys):
    printed.run(blocks("python")[1], "README.md", {})
    assert "dict_keys(['network.weight', 'network.bias'])" in capsys.readouterr().out


def test_the_recipe_for_clients_that_differ_runs_as_printed(command_line, tmp_path):
    (tmp_path / "differ.yaml").write_text(blocks("yaml")[1])
    command_line(["fit", "--config", "differ.yaml", *ONE_ROUND])
    assert (tmp_path / "lightning_logs/version_0/checkpoints/last.ckpt").exists()


@pytest.mark.parametrize("shorter", [SHORT, pytest.param(["--trainer.num_rounds", "1"], marks=pytest.mark.slow)])
def test_the_commands_in_the_readme_run_in_their_order(shorter, command_line, tmp_path):
    lines = [line.split("#")[0] for line in blocks("bash")[1].splitlines() if line.startswith("fedlit")]
    for line in lines:
        short = [] if "--help" in line else shorter
        with nullcontext() if short else pytest.raises(SystemExit, match="0"):
            command_line([*shlex.split(line)[1:], *short])
    assert len(lines) == 7


def test_the_commands_for_before_and_after_run_in_their_order(command_line, tmp_path, monkeypatch):
    command_line(["fit", "--config", "fedavg_fashion.yaml", *SHORT])
    np.savez("my.npz", images=np.zeros((2, 28, 28), np.uint8))
    lines = [line.split("#")[0] for line in blocks("bash")[2].splitlines()]
    for line in lines:
        monkeypatch.setattr("sys.argv", shlex.split(line))
        command.main()
    assert len(lines) == 5
    assert {path.name for path in tmp_path.iterdir()} == {"lightning_logs", "my.npz", "partition.png"}
    written = {path.name for path in (tmp_path / "lightning_logs/version_0").iterdir()}
    assert {"predictions_global_my.csv", "network_global.torchscript.pt"} <= written


@pytest.mark.parametrize("columns", ["MNIST MLP, IID", pytest.param("MNIST MLP*", marks=pytest.mark.slow)])
def test_the_comparisons_in_the_readme_can_be_run(columns, command_line, monkeypatch, capsys):
    lines = [line.split("   #")[0] for line in blocks("bash")[3].splitlines() if line.startswith("fedlit compare")]
    for line in lines:
        monkeypatch.setattr("sys.argv", [*shlex.split(line.replace("MNIST MLP*", columns)), "--dry-run"])
        with pytest.raises(SystemExit, match="0"):
            command.main()
        assert "0 of them done" in capsys.readouterr().out
    assert len(lines) == 2


@pytest.mark.parametrize("text", blocks("yaml"))
def test_yaml_in_the_readme_is_yaml(text):
    assert {"model", "data", "trainer"} <= yaml.safe_load(text).keys()
