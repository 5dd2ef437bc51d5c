"""Does a test fail for each condition of a shortcut that is dropped?

python tools/mutants.py              # all, a few minutes
python tools/mutants.py permission   # of one file of fedlit/fast

A mutant is a file with one condition less: an operand of `and` or `or`, a test in `all(...)`, or a guard that returns
or raises. For each, the tests that look at it run in a process of their own; a mutant that no test notices survives.
"""

import ast
import copy
import importlib
import importlib.abc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PERMISSION = "tests/fast/test_permission.py"
RECOGNITION = "tests/fast/test_recognition.py"
STACKS = "tests/fast/test_stacked_visits.py"
VISITS = "tests/fast/test_plain_visits.py"
FILES = {
    "permission": [PERMISSION],
    "transparency": [RECOGNITION],
    "recognition": [RECOGNITION],
    "stand_in": [RECOGNITION],
    "forward_code": [RECOGNITION],
    "stacked_visits": [STACKS],
    "all_ours": [VISITS],
    "plain_visits": [VISITS],
    "begun_visit": [VISITS, STACKS],
}
# Of no consequence, and why.
EQUIVALENT = {
    ("transparency", "if type(forward) is not FunctionType:"): "what has no code is an error, and an error refuses",
    ("stacked_visits", "if not client.sees_the_same_inputs:"): "spares building batches that `is_plain_data` refuses",
    ("plain_visits", "begun is None"): "what has not begun has no optimiser: an error, and an error is visited",
    ("plain_visits", "found is None"): "what was not found has no parameters: an error, and an error is visited",
    ("plain_visits", "not client.sees_the_same_inputs"): "spares building batches that are refused",
    ("stacked_visits", "if begun is None:"): "as there",
    (
        "stacked_visits",
        "if place is None:",
    ): "what has no place cannot be taken apart: an error, and an error is visited",
    ("stacked_visits", "k in self.mine"): "who is not there has no place: an error, and an error is visited",
    ("recognition", "id(parameter)"): "what lies nowhere is on no CPU, and refused for that",
    ("transparency", "reading is None"): "what was not read has no names: an error, and an error refuses",
}


class Mutated(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Gives a module another source than that of its file."""

    def __init__(self, name: str, tree: ast.Module) -> None:
        self.name = name
        self.tree = tree

    def find_spec(self, fullname, path, target=None):
        return importlib.util.spec_from_loader(fullname, self) if fullname == self.name else None

    def exec_module(self, module) -> None:
        exec(compile(self.tree, self.name, "exec"), module.__dict__)


def is_guard(node: ast.stmt) -> bool:
    """Whether a statement only turns away: `if ...: return False`, `return None`, `raise`, `continue`."""
    if not isinstance(node, ast.If) or len(node.body) != 1 or node.orelse:
        return False
    only = node.body[0]
    if isinstance(only, ast.Return):
        return only.value is None or (isinstance(only.value, ast.Constant) and not only.value.value)
    return isinstance(only, ast.Raise)


def in_place_of(parent: ast.AST, old: ast.AST, new: ast.AST | None) -> None:
    """Put a node where another stands, or nothing."""
    for field, value in ast.iter_fields(parent):
        if value is old:
            setattr(parent, field, new)
        elif isinstance(value, list) and old in value:
            at = value.index(old)
            value[at : at + 1] = [ast.copy_location(ast.Pass(), old)] if new is None else [new]


def places(tree: ast.Module) -> Iterator[tuple[ast.AST, ast.AST, ast.AST | None]]:
    """Of every condition: what it stands in, itself, and what stands there without it."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for parent in ast.walk(function):
            for node in ast.iter_child_nodes(parent):
                if is_guard(node):
                    yield parent, node, None
                if isinstance(parent, ast.BoolOp):
                    neutral = ast.Constant(isinstance(parent.op, ast.And))
                    yield parent, node, ast.copy_location(neutral, node)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id in ("all", "any"):
            yield from ((call, argument, empty(argument)) for argument in call.args)


def empty(node: ast.AST) -> ast.AST:
    return ast.copy_location(ast.Tuple(elts=[], ctx=ast.Load()), node)


def mutants(path: Path) -> Iterator[tuple[str, ast.Module]]:
    """What is dropped, and the file without it."""
    tree = ast.parse(path.read_text())
    for number, (_, found, _) in enumerate(list(places(tree))):
        if isinstance(found, ast.operator | ast.boolop):
            continue
        changed = copy.deepcopy(tree)
        parent, node, new = list(places(changed))[number]
        in_place_of(parent, node, new)
        yield f"line {found.lineno}: {ast.unparse(found).splitlines()[0]}", ast.fix_missing_locations(changed)


def source(name: str) -> Path:
    return ROOT / "fedlit" / "fast" / f"{name}.py"


def is_noticed(name: str, tree: ast.Module, tests: list[str]) -> bool:
    """Whether a test fails, in a process of its own."""
    child = os.fork()
    if child == 0:
        import pytest

        sys.meta_path.insert(0, Mutated(f"fedlit.fast.{name}", tree))
        with open(os.devnull, "w") as nowhere:
            os.dup2(nowhere.fileno(), 1)
            os.dup2(nowhere.fileno(), 2)
            os._exit(int(pytest.main(["-q", "-x", "-p", "no:cacheprovider", *tests])))
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != 0


def main() -> int:
    os.chdir(ROOT)
    sys.path.insert(0, str(ROOT))
    importlib.import_module("fedlit.federation")  # the slow imports, once for all processes
    for module in [name for name in sys.modules if name.split(".")[0] == "fedlit"]:
        del sys.modules[module]
    killed = survived = 0
    for name in sys.argv[1:] or FILES:
        if is_noticed(name, ast.parse(source(name).read_text()), FILES[name]):
            sys.exit(f"The tests of {name} fail as they are: {' '.join(FILES[name])}.")
        for dropped, tree in mutants(source(name)):
            reason = EQUIVALENT.get((name, dropped.partition(": ")[2]))
            if reason is not None:
                print(f"equivalent  {name}, {dropped}: {reason}", flush=True)
            elif is_noticed(name, tree, FILES[name]):
                killed += 1
            else:
                survived += 1
                print(f"SURVIVED    {name}, {dropped}", flush=True)
    print(f"{killed} of {killed + survived} mutants killed")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main())
