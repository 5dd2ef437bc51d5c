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
    pages: dict[str, str | bytes] = {}
    for path in NOTEBOOKS.glob("*.ipynb"):
        pages |= pages_of(path)
    write(PAGES, pages)


def pages_of(path: Path) -> dict[str, str | bytes]:
    """The notebook in Markdown and its pictures, by path from docs."""
    files: dict[str, str | bytes] = {}
    parts = []
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source.replace(".ipynb)", ".md)"))
            continue
        parts.append(f"```{'bash' if source.startswith('!') else 'python'}\n{source.removeprefix('!')}\n```")
        for output in cell["outputs"]:
            picture = output.get("data", {}).get("image/png")
            if picture is None:
                parts.append(shown(output))
            else:
                name = f"{PAGES}/{path.stem}_{number}.png"
                files[name] = base64.b64decode("".join(picture))
                parts.append(f"```{{image}} /{name}\n:class: notebook-output\n```")
    parts.append(DOWNLOAD.format(name=path.stem))
    return {f"{PAGES}/{path.stem}.md": "\n\n".join(parts) + "\n", **files}


def shown(output: dict[str, Any]) -> str:
    """An output as HTML if it has it, else as text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if "text/html" in data:
        html = "".join(data["text/html"])
        return f'```{{raw}} html\n<div class="notebook-output">{html}</div>\n```'
    text = "".join(data["text/plain"]).rstrip("\n")
    return f"```{{code-block}} text\n:class: notebook-output\n\n{text}\n```"
