"""The house: imports point one way, files and functions stay small, nobody builds a drawer."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedlit"
ORDER = [  # each room may import from those before it
    "_torchvision", "allocator", "rng", "partition", "assignment", "datasets", "pool", "augment", "batches", "client",
    "data", "joint", "pooling", "networks", "losses", "ramp", "aggregation", "precision", "evaluation", "heads",
    "ensemble", "checkpoint", "stage", "methods.base", "methods.fedavg", "methods.fedprox", "methods.finetuned",
    "methods.local", "methods.fml", "methods.fedmmd", "methods.fedfusion", "methods.moe", "methods.dlad", "methods",
    "early", "closed_form", "descent", "means", "visit", "stack", "cohort", "memories", "strategy", "failure",
    "recorder", "run", "server", "scoring", "adapt", "schedule", "snapshot", "pictures", "progress", "callbacks",
    "folder", "door", "books", "federation", "command", "", "refusal", "cli", "__main__",
]  # fmt: skip

LONG = ("base", "dlad")  # the contract; and a paper that is three trainings, of which two are a class of their own


def room(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


FILES = {room(path): path for path in PACKAGE.rglob("*.py")}


def imports(path: Path) -> set[str]:
    """Rooms that a file imports when it is loaded."""
    found = set()
    tree = ast.parse(path.read_text())
    guarded = {id(n) for node in ast.walk(tree) if isinstance(node, ast.If) for n in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and id(node) not in guarded and (node.module or "").startswith("fedlit"):
            base = node.module.removeprefix("fedlit").lstrip(".")
            names = {f"{base}.{alias.name}".lstrip(".") for alias in node.names}
            found |= {name for name in names if name in FILES} or {base}
    return found


def test_every_room_is_on_the_plan():
    assert sorted(FILES) == sorted(ORDER)


@pytest.mark.parametrize("name", sorted(set(FILES) - {""}))
def test_imports_point_one_way(name):
    backwards = {other for other in imports(FILES[name]) if ORDER.index(other) >= ORDER.index(name)}
    assert backwards == set()


def test_a_way_back_would_be_noticed(tmp_path):
    (tmp_path / "partition.py").write_text("from fedlit.federation import Federation\nfrom fedlit import data\n")
    assert imports(tmp_path / "partition.py") == {"federation", "data"}


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_files_and_functions_fit_on_a_screen_or_a_few(path):
    text = path.read_text()
    limit = 120 if path.parent.name == "methods" and path.stem not in LONG else 300
    assert len(text.splitlines()) <= limit
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            assert node.end_lineno - node.lineno + 1 - len(docstring.splitlines()) <= 50, node.name
