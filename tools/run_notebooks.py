"""`python -m tools.run_notebooks` executes the notebooks of docs/notebooks in a kernel and stores their outputs."""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[1] / "docs" / "notebooks"


def main(names: list[str]) -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            execute(path)
            print(path)


def execute(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:  # runs are written here
        NotebookClient(notebook, timeout=600, record_timing=False, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":  # warnings of libraries are left out
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata["language_info"] = {"name": "python"}  # not the version that happened to run it
    nbformat.write(notebook, path)


if __name__ == "__main__":
    main(sys.argv[1:])
