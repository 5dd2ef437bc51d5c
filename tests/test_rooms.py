"""The house: every room says whom it may ask, and imports point one way, also those inside functions."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "fedlit"
NOUNS = {
    "strict_yaml",
    "own_modules",
    "rng",
    "dealing",
    "partition",
    "augment",
    "losses",
    "aggregation",
    "notices",
    "bounds",
    "privacy",
    "server_optimizers",
    "encoders",
    "inputs",
    "tasks",
}
PARTS = {"networks", "heads"}
MAY_IMPORT = {  # a package or a top-level module, and what it may know beside itself
    **dict.fromkeys(NOUNS, NOUNS),
    **{part: NOUNS | PARTS | {"fast.max_pool"} for part in PARTS},
    "data": NOUNS,
    "records": NOUNS | {"data"},
    "methods": NOUNS | PARTS | {"data", "records.checkpoint"},
    "fast": NOUNS | {"data", "methods", "engine.plan"},
    "engine": NOUNS | PARTS | {"data", "methods", "records", "fast", "callbacks"},
    "callbacks": {"methods", "records", "bounds"},
    "federation": NOUNS | {"data", "methods", "engine", "fast.memory", "records", "callbacks", "studies.after_fit"},
    "cli": NOUNS | PARTS | {"", "data", "methods", "engine", "records", "callbacks", "federation", "studies"},
    "flower": NOUNS | {"", "data", "methods", "engine", "records", "federation", "cli"},
    "studies": {"strict_yaml", "own_modules", "records"},
    "__main__": {"cli"},
    "": {"_torchvision"},
    "_torchvision": set(),
    "joint": {"data", "notices"},
    "assignment": {"data", "notices"},
}
ENGINE_ROOMS = {  # a room of the engine, and the other rooms it may know; all know its vocabulary: options, plan, usage
    "module": set(),
    "scoring": {"module"},
    "visits": {"module", "scoring"},
    "cluster": set(),
    "guards": {"module"},
    "states": {"module", "scoring", "cluster", "guards"},
    "turns": {"module", "cluster", "states"},
    "evaluations": {"module", "scoring", "visits", "cluster", "guards", "states", "turns"},
    "rounds": {"module", "scoring", "visits", "cluster", "guards", "states", "turns", "evaluations"},
    "door": {"module", "scoring", "visits", "guards", "rounds"},
    "runs": {"module", "scoring", "visits", "cluster", "states", "turns", "evaluations", "rounds", "door"},
}
VOCABULARY = {"", "options", "plan", "usage"}


def room(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix("__init__").rstrip(".")


FILES = {room(path): path for path in PACKAGE.rglob("*.py")}


@cache
def nodes(path: Path) -> list[ast.AST]:
    """All that a file says; several tests look at it."""
    return list(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> set[str]:
    """Rooms that a file imports, wherever it does; not those that only a type checker sees."""
    tests = [node for node in nodes(path) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)]
    unseen = {id(inner) for test in tests for inner in ast.walk(test)}
    found = set()
    for node in nodes(path):
        if id(node) in unseen:
            continue
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "fedlit":
            base = node.module.removeprefix("fedlit").lstrip(".")
            inner = {f"{base}.{alias.name}".lstrip(".") for alias in node.names} & FILES.keys()
            found |= inner or {base}
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.split(".")[0] == "fedlit"]
            found |= {name.removeprefix("fedlit").lstrip(".") for name in names}
    return found


def forbidden(name: str, path: Path) -> set[str]:
    """What a room imports and may not."""
    package = name.split(".")[0]
    allowed = MAY_IMPORT[package] | {package}
    return {other for other in imports(path) if other not in allowed and other.split(".")[0] not in allowed}


def room_of_engine(name: str) -> str:
    """The engine's room in which a module lies: `engine.visits.training` lies in `visits`."""
    return name.removeprefix("engine").lstrip(".").split(".")[0]


def forbidden_in_engine(name: str, path: Path) -> set[str]:
    """What a module of the engine imports of another of its rooms, and may not."""
    own = room_of_engine(name)
    allowed = VOCABULARY | ENGINE_ROOMS.get(own, set()) | {own}
    inside = {other for other in imports(path) if other.split(".")[0] == "engine"}
    return {other for other in inside if room_of_engine(other) not in allowed}


def test_every_room_is_on_the_plan():
    assert {name.split(".")[0] for name in FILES} == set(MAY_IMPORT)


@pytest.mark.parametrize("name", sorted(FILES))
def test_a_room_asks_only_whom_it_may(name):
    assert forbidden(name, FILES[name]) == set()


IN_ENGINE = [name for name in FILES if name.split(".")[0] == "engine"]


def test_every_room_of_the_engine_is_on_the_plan():
    assert {room_of_engine(name) for name in IN_ENGINE} == set(ENGINE_ROOMS) | VOCABULARY


@pytest.mark.parametrize("name", sorted(IN_ENGINE))
def test_a_room_of_the_engine_asks_only_whom_it_may(name):
    assert forbidden_in_engine(name, FILES[name]) == set()


def test_no_two_rooms_of_the_engine_may_ask_each_other():
    graph = TopologicalSorter(ENGINE_ROOMS)
    graph.prepare()  # raises CycleError


def test_a_way_back_inside_the_engine_would_be_noticed(tmp_path):
    path = tmp_path / "visit.py"
    path.write_text("from fedlit.engine.rounds.round import ClientRound\n")
    assert forbidden_in_engine("engine.visits.visit", path) == {"engine.rounds.round"}
    assert forbidden_in_engine("engine.runs.fit", path) == set()


@pytest.mark.parametrize(
    "line",
    [
        "from fedlit.federation import Federation",
        "    from fedlit import federation",
        "import fedlit.engine.rounds.round",
    ],
)
def test_a_way_back_would_be_noticed(line, tmp_path):
    path = tmp_path / "assignment.py"
    path.write_text(f"def late():\n    pass\n{line}\n" if line[0] != " " else f"def late():\n{line}\n")
    assert forbidden("data.assignment", path)


@pytest.mark.parametrize("path", FILES.values(), ids=FILES)
def test_functions_fit_on_a_screen(path):
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            body = node.end_lineno - node.body[0].lineno + 1 - len(docstring.splitlines())
            assert body <= 50, node.name  # a signature is a list of options
