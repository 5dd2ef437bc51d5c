"""Pages lead where they say, and those that are generated say what the classes say."""

import inspect
import os
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import method_pages
import pytest
from docstrings import in_order
from equations import as_latex
from lightning.pytorch.callbacks import Callback
from printed import ROOT
from reference_pages import PAGES as REFERENCE
from reference_pages import every_object, public_names, text_of
from repository import LINK, complete

from fedlit import callbacks, methods
from fedlit.cli.methods import card_of, methods_of

DOCS = ROOT / "docs"
OWN = methods_of(methods)
GENERATED = {f"methods/{method.__name__}.md" for method in OWN} | {f"reference/{name}.md" for name in REFERENCE}
GENERATED |= {"methods/index.md", "reference/index.md"}
MADE = {DOCS / name for name in ("methods", "reference", "notebook_pages", "source", "_build")}
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if not MADE & set(page.parents)]
PAGES += [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]


def prose(path: Path) -> str:
    return re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(path: Path) -> set[str]:
    """Headings as links name them."""
    headings = re.findall(r"^#+ (.*)$", prose(path), flags=re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken(path: Path) -> list[str]:
    found = []
    for name, anchor in LINK.findall(prose(path)):
        target = Path(os.path.normpath(path.parent / name))
        is_generated = target.is_relative_to(DOCS) and str(target.relative_to(DOCS)) in GENERATED
        is_folder_of_docs = target.is_relative_to(DOCS) and target.is_dir()  # only those outside become pages
        if not is_generated and (not target.exists() or is_folder_of_docs):
            found.append(name)
        elif anchor and not is_generated and anchor[1:] not in anchors(target):
            found.append(name + anchor)
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(path):
    assert broken(path) == []


def test_a_link_that_leads_nowhere_would_be_noticed(tmp_path):
    (tmp_path / "other.md").write_text("# There is this\n")
    page = tmp_path / "page.md"
    page.write_text("[a](gone.md), [b](other.md#there-is-this), [c](other.md#not-this), [d](https://example.org)")
    assert broken(page) == ["gone.md", "other.md#not-this"]


def test_every_page_is_in_the_table_of_contents():
    contents = (DOCS / "index.md").read_text()
    top = {path.stem for path in PAGES if path.parent == DOCS} - {"index"}
    assert [name for name in sorted(top) if not re.search(rf"^\??{name}(\*\*)?$", contents, re.MULTILINE)] == []


@pytest.mark.parametrize("method", OWN, ids=lambda method: method.__name__)
def test_the_page_of_a_method_says_what_the_class_says(method):
    page = method_pages.page(method, None)
    card = card_of(method)
    for text in (card.invariant, card.travels, card.use, *card.recipes):
        assert text in page
    assert "## Results" not in page
    assert f".. autoclass:: fedlit.methods.{method.__name__}" in page
    assert not re.search(r"^ {4,}\S.*(?:=|<-)", page, flags=re.MULTILINE)  # equations are typeset


def test_the_overview_has_the_groups_of_the_readme_with_links_to_pages():
    overview = method_pages.overview(OWN)
    assert "**Personalised**" in overview
    assert [method.__name__ for method in OWN if f"| [{method.__name__}]({method.__name__}.md) |" not in overview] == []


@pytest.mark.parametrize(
    ("ascii", "latex"),
    [
        ("w_{t+1} = sum_k a_k w_k", r"w_{t+1} &= \sum_{k} a_{k} w_{k}"),
        ("v <- v - lr * (grad f_k(v) + lam * v)", r"v &\leftarrow v - \mathit{lr} \, (\nabla f_{k}(v) + \lambda \, v)"),
        ("L = mu/2 ||w - w_t||^2 - <h_i, w>", r"L &= \tfrac{\mu}{2} \|w - w_{t}\|^2 - \langle h_{i}, w\rangle"),
        ("L_meme     = beta  * CE(p_meme, y)", r"L_{\mathrm{meme}} &= \beta \, \mathrm{CE}(p_{\mathrm{meme}}, y)"),
        ("h <- 1    for tau_h epochs", r"h &\leftarrow 1 && \text{for}\ \tau_{h}\ \text{epochs}"),
        ("a = b,    c = d    at a rate", "a &= b, \\\\\nc &= d && \\text{at a rate}"),
        ("a = b    with FedProx's term", r"a &= b && \text{with FedProx's term}"),
        ("c_i+ = Cbar^{y_n} - f~(x)", r"c_{i}^{+} &= \bar{C}^{y_{n}} - \tilde{f}(x)"),
    ],
)
def test_an_equation_of_a_docstring_is_typeset(ascii, latex):
    assert as_latex(f"    {ascii}\n") == f"\\begin{{aligned}}\n{latex}\n\\end{{aligned}}"


def test_arguments_stand_in_the_order_of_the_signature():
    text = "One.\n\nArgs:\n    b: Second,\n        in two lines.\n    a: First.\n\nExample:\n    c: none\n"
    ordered = "One.\n\nArgs:\n    a: First.\n    b: Second,\n        in two lines.\n\nExample:\n    c: none\n"
    assert in_order(text, ["a", "b"]) == ordered
    assert in_order("One.", ["a"]) == "One."


PUBLIC = ["", "aggregation", "augment", "data", "encoders", "heads", "losses", "methods", "networks", "partition"]
PUBLIC += ["server_optimizers", "tasks"]


def paths(module: str, name: str) -> set[str]:
    """Under which an object can be found: where it is imported from and where it is defined."""
    thing = getattr(import_module(module), name)
    return {f"{module}.{name}", f"{getattr(thing, '__module__', '')}.{getattr(thing, '__qualname__', '')}"}


@pytest.mark.parametrize("module", [f"fedlit.{name}".rstrip(".") for name in PUBLIC])
def test_every_public_name_has_an_entry_in_the_reference(module):
    entries = {other for path, _ in every_object() for other in paths(*path.rsplit(".", 1))}
    names = public_names(import_module(module))
    assert names
    assert [name for name in names if not entries & paths(module, name)] == []


def test_the_reference_has_what_a_user_calls_or_subclasses():
    entries = {path.rpartition(".")[2] for path, _ in every_object()}
    assert {"FitResult", "ClientLevelDP", "Encoder", "Task"} <= entries
    made = {"MaxTime"}  # by `trainer.max_time`
    own = [kind for kind in vars(callbacks).values() if getattr(kind, "__module__", "") == callbacks.__name__]
    assert {kind.__name__ for kind in own if inspect.isclass(kind) and issubclass(kind, Callback)} - made <= entries
    assert ".. autoclass:: fedlit.Federation" in text_of("federation")


def test_a_page_takes_in_a_file_of_the_repository():
    text = [(DOCS / "changelog.md").read_text()]
    complete(None, "changelog", text)
    assert "## Unreleased" in text[0]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("sphinx") is None, reason="the extra `docs` is not installed")
def test_the_pages_are_built_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-n", "-W", "--keep-going", "-q", str(DOCS), str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    page = (tmp_path / "reference" / "losses.html").read_text()
    assert "_static/mathjax/tex-svg.js" in page
    fetched = re.findall(r'<(?:script|link|img)[^>]* (?:src|href)="(https?:[^"]*)', page)
    assert 'id="fedlit.losses.mutual_loss"' in page
    assert fetched == []  # nothing is asked for from elsewhere
