"""What is promised beside the code: private names of others exist, and CI calls what the Makefile has."""

import argparse
import re
from importlib.metadata import version
from pathlib import Path
from pkgutil import resolve_name

import pytest
import torch
import yaml
from lightning.fabric import Fabric
from lightning.pytorch import LightningModule
from packaging.version import Version
from torch import nn

import fedlit

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "private_names.md"
YOUNGER = {"_parse_ckpt_path": "2.5.5"}  # overrides that an older Lightning does not know, and never calls

# What only an instance has.


def sequential_schedule():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1)
    parts = [torch.optim.lr_scheduler.ConstantLR(optimizer) for _ in range(2)]
    return torch.optim.lr_scheduler.SequentialLR(optimizer, parts, milestones=[1])


INSTANCES = {
    "torch.nn.Module": nn.Module,
    "torch.nn.Parameter": lambda: nn.Parameter(torch.zeros(1)),
    "torch.optim.SGD": lambda: torch.optim.SGD([torch.zeros(1)], lr=0.1),
    "torch.optim.lr_scheduler.SequentialLR": sequential_schedule,
    "lightning.fabric.Fabric": lambda: Fabric(accelerator="cpu", devices=1),
    "lightning.pytorch.LightningModule": LightningModule,
    "argparse.ArgumentParser": argparse.ArgumentParser,
    "argparse.HelpFormatter": lambda: argparse.HelpFormatter("fedlit"),
}


def listed() -> dict[str, set[str]]:
    """The table: full name, and the files of its second column."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", TABLE.read_text(), flags=re.MULTILINE)
    return {name: set(re.findall(r"`([\w./]+)`", where)) for name, where in rows}


@pytest.mark.parametrize("name", sorted(listed()))
def test_a_private_name_is_used_where_the_table_says_and_exists_in_the_installed_version(name):
    owner, _, last = name.rpartition(".")
    if last in YOUNGER and Version(version("lightning")) < Version(YOUNGER[last]):
        pytest.skip(f"Lightning has it since {YOUNGER[last]}")
    holder = INSTANCES[owner]() if owner in INSTANCES else resolve_name(owner)
    assert hasattr(holder, last)
    short = next(part for part in name.split(".") if part.startswith("_"))
    assert all(short in (ROOT / "fedlit" / file).read_text() for file in listed()[name])


def targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))


def jobs() -> dict:
    return yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text())["jobs"]


@pytest.mark.parametrize("name", sorted(jobs()))
def test_a_job_of_the_workflow_runs_what_the_makefile_has(name):
    commands = [step["run"].split() for step in jobs()[name]["steps"] if "run" in step]
    assert commands
    for program, *wanted in commands:
        assert program == "make"
        assert set(wanted) <= targets()


def lower_bounds() -> dict[str, str]:
    text = (ROOT / "pyproject.toml").read_text()
    dependencies = re.search(r"^dependencies = \[(.*?)^\]", text, flags=re.MULTILINE | re.DOTALL)[1]
    extras = re.findall(r"^(?:report|onnx|dp) = \[(.*?)\]", text, flags=re.MULTILINE)
    return dict(re.findall(r'"([\w-]+)(?:\[\w+\])?>=([\d.]+)', "".join([dependencies, *extras])))


@pytest.mark.parametrize("name", sorted(lower_bounds()))
def test_the_oldest_constraints_are_the_lower_bounds(name):
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints-oldest.txt").read_text(), flags=re.MULTILINE))
    bound = lower_bounds()[name]
    assert pinned[name].startswith(bound)
    assert set(pinned[name].removeprefix(bound)) <= {".", "0"}


def test_files_and_commands_that_the_guide_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    paths = re.findall(r"`((?:fedlit|tests|tools|docs|configs)/[\w./]*)`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert set(re.findall(r"make ([a-z-]+)", text)) <= targets()


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]
    assert citation["version"] == newest == fedlit.__version__
