"""What lies outside docs: parts of README and the like are taken in, and files are shown as pages.

A line `<!-- take README.md: quick start -->` becomes what README.md has between `<!-- quick start -->` and `<!-- end of
quick start -->`; without a name it becomes the whole file. A line after it, before `<!-- taken -->`, is for those
who read the page as it lies in the repository, and left out. A link to a file or folder outside docs becomes one to a
page with its text. An entry `?page` of a table of contents is there if that page is.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what is generated can be tested without it
    from sphinx.application import Sphinx


DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
PAGES = {"README.md": "quickstart.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
LINK = re.compile(r"\]\((?!\w+:|/)([^)#\s]+)(#[^)\s]*)?\)")
TAKE = re.compile(r"<!-- take ([\w./]+)(?:: ([\w ]+))? -->(?:\n[^\n]*\n<!-- taken -->)?")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml"}
SHOWN = ("fedlit/methods/*.py", "configs/*.yaml", "configs/papers/*.yaml")


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("builder-inited", write_source_pages)
    app.connect("source-read", complete)
    return {"parallel_read_safe": True}


def complete(app: "Sphinx", name: str, source: list[str]) -> None:
    """A page as Sphinx is to read it."""
    folder = (DOCS / name).parent
    text = relinked(source[0], folder)
    text = TAKE.sub(lambda found: taken(found[1], found[2]), text)
    source[0] = re.sub(r"^\?(\S+)\n", lambda found: optional(folder, found[1]), text, flags=re.MULTILINE)


def optional(folder: Path, page: str) -> str:
    return f"{page}\n" if (folder / f"{page}.md").exists() else ""


def taken(file: str, part: str | None) -> str:
    """A file, or what it has between two marks."""
    text = (ROOT / file).read_text()
    if part is not None:
        text = text.split(f"<!-- {part} -->")[1].split(f"<!-- end of {part} -->")[0]
    return relinked(text, (ROOT / file).parent)


def relinked(text: str, folder: Path) -> str:
    """Links that are right in `folder` made right anywhere in docs."""

    def page(found: re.Match[str]) -> str:
        target = Path(os.path.normpath(folder / found[1]))
        if not target.exists():
            return found[0]  # Sphinx will say so, unless it was code
        return f"](/{page_of(target)}{found[2] or ''})"

    return LINK.sub(page, text)


def page_of(target: Path) -> str:
    """Where a file or folder of the repository is among the pages."""
    if target.is_relative_to(DOCS / "notebooks"):
        return f"notebook_pages/{target.stem}.md"
    if target.is_relative_to(DOCS):
        return str(target.relative_to(DOCS))
    path = str(target.relative_to(ROOT))
    if path in PAGES:
        return PAGES[path]
    return f"source/{path}/index.md" if target.is_dir() else f"source/{path}.md"


def linked() -> Iterator[Path]:
    """What pages link to outside docs, and what is always shown."""
    for pattern in SHOWN:
        yield from ROOT.glob(pattern)
    made = {DOCS / name for name in ("source", "methods", "reference", "notebook_pages", "_build")}
    pages = [page for page in DOCS.rglob("*.md") if not made & set(page.parents)]
    for page in [*pages, *(ROOT / name for name in PAGES)]:
        for target, _ in LINK.findall(page.read_text()):
            path = Path(os.path.normpath(page.parent / target))
            if path.exists() and not path.is_relative_to(DOCS):
                yield path


def write_source_pages(app: "Sphinx") -> None:
    for path in set(linked()):
        name = str(path.relative_to(ROOT))
        if name in PAGES:
            continue
        head = f"---\norphan: true\nnosearch: true\n---\n# `{name}`\n\n"
        if path.is_dir():
            body = "".join(f"- {_entry(inner)}\n" for inner in sorted(path.iterdir()) if inner.name != "__pycache__")
        else:
            language = LANGUAGES.get(path.suffix, "text")
            body = f"```{{literalinclude}} /../{name}\n:language: {language}\n```\n"
        write(page_of(path), head + body)


def _entry(path: Path) -> str:
    page = page_of(path)
    is_shown = any(path.match(pattern) for pattern in SHOWN)
    return f"[`{path.name}`](/{page})" if is_shown else f"`{path.name}`"


def write(page: str, text: str) -> None:
    """A generated page; one that is as it was keeps its time, so that it is not built again."""
    path = DOCS / page
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
