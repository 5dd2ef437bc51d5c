"""The API reference: a page for each subject, which autodoc fills from signatures and docstrings."""

import inspect
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from docstrings import as_markdown, as_rst, in_order
from repository import write

from fedlit import methods
from fedlit.cli.methods import methods_of

if TYPE_CHECKING:
    from docutils.nodes import Element
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment


class Page(NamedTuple):
    """A page of the reference.

    Attributes:
        title: Its heading.
        where: The options of a recipe, or the hooks of a method, that take what stands on it.
        module: Whose public names it has, by `__all__` or by where they are defined.
        names: Those to show, if not all; with dots if they stand elsewhere.
    """

    title: str
    where: str
    module: str
    names: tuple[str, ...] = ()


CONTRACT = ("FederatedModule", "Stage", "EarlyStopping", "Ramp", "Card")
RULES = ("Mean", "Median", "TrimmedMean", "Krum", "MultiKrum", "NormClipping", "GeometricMedian", "Aggregator")
PAGES = {
    "federation": Page(
        "Federation",
        "`trainer` in a recipe.",
        "fedlit",
        ("Federation", "federation.FitResult", "read_metrics"),
    ),
    "data": Page("Data", "`data` in a recipe; a method gets a `Client`.", "fedlit.data"),
    "partitions": Page("Partitions", "`data.partition` in a recipe.", "fedlit.partition"),
    "augmentation": Page("Augmentation", "`data.augmentation` in a recipe.", "fedlit.augment"),
    "module": Page("FederatedModule and stages", "What a method subclasses and returns.", "fedlit.methods", CONTRACT),
    "building": Page("Building blocks of methods", "For the code of a method.", "fedlit.methods"),
    "losses": Page("Losses", "For `training_step` of a method.", "fedlit.losses"),
    "networks": Page("Networks", "`model.network` in a recipe.", "fedlit.networks"),
    "heads": Page("Heads and parts of networks", "`model.network` in a recipe, or in a method.", "fedlit.heads"),
    "tasks": Page("Tasks", "`model.task` in a recipe.", "fedlit.tasks"),
    "aggregators": Page("Aggregation rules", "`trainer.aggregator` in a recipe.", "fedlit.aggregation", RULES),
    "aggregation": Page("Aggregation", "For `aggregate` of a method, or a rule.", "fedlit.aggregation"),
    "encoders": Page("Encoders", "`trainer.upload_encoder` in a recipe.", "fedlit.encoders"),
    "server_optimizers": Page(
        "Server optimizers", "`trainer.server_optimizer` in a recipe.", "fedlit.server_optimizers"
    ),
    "privacy": Page("Privacy", "`trainer.privacy` in a recipe.", "fedlit.privacy", ("ClientLevelDP",)),
    "callbacks": Page(
        "Callbacks",
        "`trainer.callbacks` in a recipe.",
        "fedlit.callbacks",
        ("FederationCallback", "StopAt", "Patience", "Pruning", "Trial"),
    ),
}
ALIASES = {
    "fedlit.aggregation.NOTHING": "The message of a round in which no client sent a usable upload.",
    "fedlit.aggregation.Rule": "``Callable[[Iterable[Upload], Mapping[str, Tensor]], State]``: an aggregation rule.",
    "fedlit.aggregation.State": "``dict[str, Tensor]``: entries of a state dict.",
    "fedlit.methods.ClientNetworks": "A list of factories, one for each client, or a dict of factories by client.",
    "fedlit.methods.ClientOptimizers": "As ``ClientNetworks``, of factories of optimisers.",
    "fedlit.methods.NetworkFactory": "``Callable[[], nn.Module]``: builds a new network.",
    "fedlit.methods.OptimizerCallable": "``Callable[[Iterable[Parameter]], Optimizer]``, as in Lightning's CLI.",
    "fedlit.methods.Weighting": '``Literal["examples", "uniform"]``: how uploads are weighted.',
}
"""Names for types and constants, which have no docstring of their own."""
INTRODUCTION = """\
# API reference

Everything public, from signatures and docstrings. Constructor arguments are the options of a recipe:
`Federation(num_rounds=10)` is `trainer: {num_rounds: 10}` or `--trainer.num_rounds 10`.
Each [method](/methods/index.md) has a page of its own.
"""


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("builder-inited", write_reference_pages)
    app.connect("autodoc-process-docstring", process, priority=400)  # before napoleon
    app.connect("missing-reference", resolve)
    return {"parallel_read_safe": True}


def write_reference_pages(app: "Sphinx") -> None:
    entries = "".join(f"{name}\n" for name in PAGES)
    index = f"{INTRODUCTION}\n```{{toctree}}\n:maxdepth: 1\n\n{entries}```\n"
    write("reference", {f"reference/{name}.md": text_of(name) for name in PAGES} | {"reference/index.md": index})


def text_of(name: str) -> str:
    page = PAGES[name]
    parts = [f"# {page.title}", page.where]
    if not page.names:
        parts.append(as_markdown(inspect.getdoc(import_module(page.module)) or ""))
    parts += [directive(path, thing) for path, thing in documented(name)]
    return "\n\n".join(part for part in parts if part) + "\n"


def directive(path: str, thing: Any, heading: str = "", *options: str) -> str:
    """An autodoc directive under a heading, within Markdown."""
    heading = f"## {heading or path.rpartition('.')[2]}\n\n"
    if path in ALIASES:
        return heading + f"```{{eval-rst}}\n.. py:data:: {path}\n\n   {ALIASES[path]}\n```"
    kind = "class" if inspect.isclass(thing) else "function"
    if inspect.isclass(thing) and issubclass(thing, Exception):
        kind = "exception"
    lines = [f".. auto{kind}:: {path}", *(f"   {option}" for option in options)]
    return heading + "```{eval-rst}\n" + "\n".join(lines) + "\n```"


def documented(name: str) -> list[tuple[str, Any]]:
    """Paths and objects of a page, in order; each stands on one page alone."""
    page = PAGES[name]
    if page.names:
        return [_found(f"{page.module}.{path}") for path in page.names]
    elsewhere = {f"{other.module}.{path}" for other in PAGES.values() for path in other.names}
    elsewhere |= {f"fedlit.methods.{method.__name__}" for method in methods_of(methods)}
    paths = [f"{page.module}.{public}" for public in public_names(import_module(page.module))]
    return [_found(path) for path in paths if path not in elsewhere]


def _found(path: str) -> tuple[str, Any]:
    module, _, last = path.rpartition(".")
    return path, getattr(import_module(module), last)


def public_names(module: Any) -> list[str]:
    """`__all__`, or the documented classes and functions that a module defines."""
    listed = getattr(module, "__all__", None)
    if listed is not None:
        return list(listed)
    own = {name: thing for name, thing in vars(module).items() if getattr(thing, "__module__", "") == module.__name__}
    return [name for name, thing in own.items() if not name.startswith("_") and thing.__doc__]


def every_object() -> Iterator[tuple[str, Any]]:
    """All paths that have an entry, those of methods included."""
    for name in PAGES:
        yield from documented(name)
    for method in methods_of(methods):
        yield f"fedlit.methods.{method.__name__}", method


def process(app: "Sphinx", what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    text = as_rst("\n".join(lines), links())
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        text = in_order(text + "\n", list(inspect.signature(thing).parameters))
    if what in ("attribute", "property"):  # before a colon on the first line napoleon expects a type
        text = text.replace(": ", ":\n", 1)
    lines[:] = text.splitlines()


@cache
def links() -> dict[str, str]:
    """The entry of what a docstring may name: by its class or function, by either path."""
    found = {}
    for path, thing in every_object():
        found[path.rpartition(".")[2]] = path
        found[path] = path
        if inspect.isclass(thing) or inspect.isroutine(thing):
            found[f"{thing.__module__}.{thing.__qualname__}"] = path
    return found


def resolve(app: "Sphinx", env: "BuildEnvironment", node: "pending_xref", content: "Element") -> "Element | None":
    """A type in a signature has the path of its module, its entry that under which it is imported."""
    path = links().get(node.get("reftarget", ""))
    if node.get("refdomain") != "py" or path is None:
        return None
    domain = env.get_domain("py")
    return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", path, node, content)
