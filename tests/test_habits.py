"""What is promised beside the code: private names of others are listed, and CI calls what the Makefile has."""

import argparse
import ast
import re
from collections import defaultdict
from importlib import import_module
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
PACKAGE = ROOT / "fedlit"
TABLE = ROOT / "docs" / "private_names.md"
OF_TUPLES = {"_fields", "_asdict", "_replace"}  # documented: the underscore keeps them apart from a tuple's fields
YOUNGER = {"_parse_ckpt_path": "2.5.5"}  # overrides that an older Lightning does not know, and never calls
SET_BY_NAME = {"_mean", "_std"}  # FederatedData's own, by `setattr`
Uses = dict[str, set[str]]  # by name, the files that use it

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


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_TUPLES and name != "_"


def own_names(tree: ast.AST) -> set[str]:
    """What a file defines, in a class or a module, or sets on `self` or `cls`."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        is_set = isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
        if is_set and ast.unparse(node.value) in ("self", "cls"):
            found.add(node.attr)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
    return found


def looked_up(tree: ast.AST) -> set[str]:
    """Private names that a file reaches for: as attributes, in imports and by `getattr` and its kin."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        if isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names} | set((node.module or "").split("."))
        if isinstance(node, ast.Import):
            found |= {part for alias in node.names for part in alias.name.split(".")}
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "setattr", "hasattr", "delattr"):
            found |= {argument.value for argument in node.args[1:2] if isinstance(argument, ast.Constant)}
    return {name for name in found - SET_BY_NAME if is_private(name)}


EXTRAS = {"flwr"}  # packages of extras, which need not be installed


def overridden(module: str, tree: ast.AST) -> set[str]:
    """Private methods that our classes take over from somebody else's."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            try:
                own = getattr(import_module(module), node.name, None)
            except ModuleNotFoundError as error:
                if error.name not in EXTRAS:
                    raise
                continue
            foreign = [base for base in getattr(own, "__mro__", ()) if not base.__module__.startswith("fedlit")]
            names = {part.name for part in node.body if isinstance(part, ast.FunctionDef) and is_private(part.name)}
            found |= {name for name in names if name in YOUNGER or any(name in vars(base) for base in foreign)}
    return found


def private_uses(folder: Path, package: str = "fedlit") -> Uses:
    """Private names of others that a package uses."""
    paths = {str(path.relative_to(folder)): path for path in sorted(folder.rglob("*.py"))}
    trees = {file: ast.parse(path.read_text()) for file, path in paths.items()}
    ours = {path.stem for path in paths.values()}.union(*(own_names(tree) for tree in trees.values()))
    uses: Uses = defaultdict(set)
    for file, tree in trees.items():
        module = ".".join([package, *Path(file).with_suffix("").parts]).removesuffix(".__init__")
        taken_over = overridden(module, tree) if package == "fedlit" and "__main__" not in file else set()
        for name in (looked_up(tree) - ours) | taken_over:
            uses[name].add(file)
    return dict(uses)


def listed() -> dict[str, set[str]]:
    """The table: full name, and the files of its second column."""
    rows = re.findall(r"^\| `([\w.]+)` \| (.*?) \|", TABLE.read_text(), flags=re.MULTILINE)
    return {name: set(re.findall(r"`([\w./]+)`", where)) for name, where in rows}


def test_every_private_name_of_others_is_in_the_table_with_where_it_is_used():
    documented: Uses = defaultdict(set)
    for name, files in listed().items():
        for part in filter(is_private, name.split(".")):
            documented[part] |= files
    assert private_uses(PACKAGE) == documented


@pytest.mark.parametrize("name", sorted(listed()))
def test_a_private_name_exists_in_the_installed_version(name):
    owner, _, last = name.rpartition(".")
    if last in YOUNGER and Version(version("lightning")) < Version(YOUNGER[last]):
        pytest.skip(f"Lightning has it since {YOUNGER[last]}")
    holder = INSTANCES[owner]() if owner in INSTANCES else resolve_name(owner)
    assert hasattr(holder, last)


@pytest.mark.parametrize(
    "line",
    [
        "fabric._hidden = 1",
        "from torch.optim import _hidden",
        "import torch._hidden.inner",
        "from torch._hidden import inner",
        "value = getattr(module, '_hidden')",
    ],
)
def test_a_new_private_name_would_be_noticed(line, tmp_path):
    (tmp_path / "new.py").write_text(f"{line}\n")
    assert private_uses(tmp_path, "new") == {"_hidden": {"new.py"}}


def test_a_private_name_of_our_own_is_not_in_question(tmp_path):
    (tmp_path / "new.py").write_text(
        "class Own:\n    def ask(self):\n        self._hidden = 1\n        return self._hidden\n"
    )
    assert private_uses(tmp_path, "new") == {}


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


def test_the_workflow_has_two_pythons_and_two_processors_and_an_old_one():
    matrix = jobs()["test"]["strategy"]["matrix"]
    assert len(set(matrix["python"])) == len(set(matrix["os"])) == 2
    assert jobs()["old-processor"]["env"].keys() == {
        "ATEN_CPU_CAPABILITY",
        "DNNL_MAX_CPU_ISA",
        "MKL_ENABLE_INSTRUCTIONS",
    }


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


def test_pre_commit_needs_no_download():
    repositories = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in repositories] == ["local"]


@pytest.mark.parametrize("file", ["CONTRIBUTING.md"])
def test_files_and_commands_that_the_guide_names_exist(file):
    text = (ROOT / file).read_text()
    paths = re.findall(r"`((?:fedlit|tests|tools|docs|configs)/[\w./]*)`", text)
    assert paths
    assert [path for path in paths if not (ROOT / path).exists()] == []
    assert set(re.findall(r"make ([a-z-]+)", text)) <= targets()


def test_the_citation_and_the_changelog_are_of_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    newest = re.search(r"^## ([\d.]+)", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1]
    assert citation["version"] == newest == fedlit.__version__
