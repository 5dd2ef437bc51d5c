"""A page for each notebook of docs/notebooks, with the outputs that are stored in it."""

import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from repository import DOCS, write

if TYPE_CHECKING:
    from sphinx.application import Sphinx

NOTEBOOKS = DOCS / "notebooks"
PAGES = "notebook_pages"
DOWNLOAD = "Download this notebook: {{download}}`{name}.ipynb <../notebooks/{name}.ipynb>`."


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("builder-inited", write_notebook_pages)
    return {"parallel_read_safe": True}


def write_notebook_pages(app: "Sphinx") -> None:
    for path in NOTEBOOKS.glob("*.ipynb"):
        write(f"{PAGES}/{path.stem}.md", page(path))


def page(path: Path) -> str:
    """The notebook in Markdown; pictures are written beside the page."""
    cells = json.loads(path.read_text())["cells"]
    parts = []
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace(".ipynb)", ".md)"))
            continue
        parts.append(f"```{'bash' if source.startswith('!') else 'python'}\n{source.removeprefix('!')}\n```")
        parts += [shown(output, f"{PAGES}/{path.stem}_{number}.png") for output in cell["outputs"]]
    parts.append(DOWNLOAD.format(name=path.stem))
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(output: dict[str, Any], picture: str) -> str:
    """An output in its richest form: a picture, HTML or text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "image/png" in data:
        (DOCS / picture).parent.mkdir(exist_ok=True)
        (DOCS / picture).write_bytes(base64.b64decode("".join(data["image/png"])))
        return f"```{{image}} /{picture}\n:class: notebook-output\n```"
    if "text/html" in data:
        html = "".join(data["text/html"])
        return f'```{{raw}} html\n<div class="notebook-output">{html}</div>\n```'
    text = "".join(data["text/plain"]).rstrip("\n")
    return f"```{{code-block}} text\n:class: notebook-output\n\n{text}\n```"
