"""How the code reads, in figures: `python tools/measure_code.py [FOLDER]`; the folder is `fedlit` by default.

Modules per folder, lines per file and function (docstrings not counted), what is packed per 1,000 lines, and how many
modules a module imports (fan-out) and is imported by (fan-in).
"""

import ast
import sys
from collections import Counter
from pathlib import Path
from statistics import quantiles


def spread(values: list[int]) -> str:
    cuts = quantiles(values, n=10, method="inclusive")
    return f"p50 {cuts[4]:.0f}, p90 {cuts[8]:.0f}, max {max(values)}"


def functions(tree: ast.AST) -> list[int]:
    """Lines of each function without its docstring."""
    lengths = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            docstring = ast.get_docstring(node, clean=False) or ""
            lengths.append(node.end_lineno - node.lineno + 1 - len(docstring.splitlines()))
    return lengths


def packed(tree: ast.AST) -> Counter:
    """What a reader has to unpack."""
    found: Counter = Counter()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple):
            found["tuple assignments"] += isinstance(node.value, ast.Tuple)
        found["conditional expressions"] += isinstance(node, ast.IfExp)
        found["comprehensions"] += isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp)
        found["walrus"] += isinstance(node, ast.NamedExpr)
    return found


def code_lines(text: str, tree: ast.AST) -> int:
    """Lines that are neither blank, nor comment, nor docstring."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef)
    docstrings = [n.body[0] for n in ast.walk(tree) if isinstance(n, documented) and ast.get_docstring(n)]
    skipped = {number for node in docstrings for number in range(node.lineno, node.end_lineno + 1)}
    lines = enumerate(text.splitlines(), start=1)
    return sum(1 for number, line in lines if number not in skipped and line.strip() and line.strip()[0] != "#")


def imported(tree: ast.AST, package: str, known: set[str]) -> set[str]:
    """Modules of the package that a module imports, inside functions too."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == package:
            inner = {f"{node.module}.{alias.name}" for alias in node.names} & known
            found |= inner or {node.module}
    return found


def main() -> None:
    root = Path(sys.argv[1] if len(sys.argv) > 1 else "fedlit")
    files = sorted(root.rglob("*.py"))
    sources = {path: path.read_text() for path in files}
    trees = {path: ast.parse(text) for path, text in sources.items()}
    names = {
        path: ".".join([root.name, *path.relative_to(root).with_suffix("").parts]).removesuffix(".__init__")
        for path in files
    }
    known = set(names.values())
    lines = {path: len(text.splitlines()) for path, text in sources.items()}
    total = sum(lines.values())

    print("modules per folder")
    for folder, count in sorted(Counter(path.parent for path in files).items()):
        print(f"  {folder}: {count}")
    print(f"lines: {total} in {len(files)} files; per file {spread(list(lines.values()))}")
    print(f"lines per function: {spread([n for tree in trees.values() for n in functions(tree)])}")
    code = sum(code_lines(text, trees[path]) for path, text in sources.items())
    densities = sum((packed(tree) for tree in trees.values()), Counter())
    for what, count in densities.items():
        print(f"{what}: {count}, {1000 * count / code:.1f} per 1,000 lines of code")
    long = sum(len(line) > 100 for text in sources.values() for line in text.splitlines())
    print(f"lines beyond 100 columns: {long}, {100 * long / total:.1f} %")
    fan_out = {names[path]: imported(tree, root.name, known) - {names[path]} for path, tree in trees.items()}
    fan_in = Counter(other for others in fan_out.values() for other in others)
    widest = max(fan_out, key=lambda name: len(fan_out[name]))
    print(f"fan-out: {spread([len(others) for others in fan_out.values()])} ({widest})")
    most = max(known, key=lambda name: fan_in[name])
    print(f"fan-in: {spread([fan_in[name] for name in known])} ({most})")


if __name__ == "__main__":
    main()
