"""Every notebook runs from its first cell to its last, and shows what its cells returned."""

import json
import os
import subprocess
import sys

import pytest
from notebook_pages import page
from printed import ROOT

NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
SLOW = {"comparing_methods"}  # it starts processes


def cells(path) -> list[dict]:
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def as_script(path) -> str:
    """The code of a notebook, its commands by the shell."""
    lines = []
    for line in "\n".join("".join(cell["source"]) for cell in cells(path)).splitlines():
        command = f"import subprocess; subprocess.run({line[1:]!r}, shell=True, check=True)"
        lines.append(command if line.startswith("!") else line)
    return "\n".join(lines)


@pytest.mark.parametrize(
    "path", [pytest.param(p, id=p.stem, marks=[pytest.mark.slow] if p.stem in SLOW else []) for p in NOTEBOOKS]
)
def test_a_notebook_runs(path, tmp_path):
    folder = os.path.dirname(sys.executable)
    environment = {**os.environ, "MPLBACKEND": "agg", "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    ran = subprocess.run(
        [sys.executable, "-c", as_script(path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert ran.returncode == 0, ran.stderr[-2000:]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_was_run_from_top_to_bottom_and_its_page_shows_it(path):
    assert [cell["execution_count"] for cell in cells(path)] == list(range(1, len(cells(path)) + 1))
    assert not any(output["output_type"] == "error" for cell in cells(path) for output in cell["outputs"])
    text = page(path)
    assert text.count("notebook-output") == sum(bool(cell["outputs"]) for cell in cells(path)) > 2


def test_there_are_three():
    assert {path.stem for path in NOTEBOOKS} == {"first_steps", "own_method", "comparing_methods"}
