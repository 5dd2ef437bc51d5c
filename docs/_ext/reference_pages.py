"""Options of everything that a recipe names, from signatures and docstrings."""

import inspect
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from docstrings import as_markdown, description, example, options
from repository import write

if TYPE_CHECKING:
    from sphinx.application import Sphinx


class Page(NamedTuple):
    """A page: what stands in some modules, and where a recipe has it."""

    title: str
    modules: tuple[str, ...]
    option: str
    names: tuple[str, ...] = ()  # all public ones by default
    prefix: str = ""


PAGES = {
    "federation": Page("Federation", ("fedlit.federation",), "trainer", ("Federation",), "--trainer."),
    "data": Page("Data", ("fedlit.data",), "data", ("FederatedData", "JointData", "Saved"), "--data."),
    "partitions": Page("Partitions", ("fedlit.partition",), "data.partition"),
    "augmentation": Page("Augmentation", ("fedlit.augment",), "data.augmentation"),
    "stages": Page(
        "Stages of a method", ("fedlit.methods",), "configure_stages", ("Stage", "EarlyStopping", "Ramp", "Card")
    ),
    "tasks": Page("Tasks", ("fedlit.tasks",), "model.task"),
    "networks": Page("Networks", ("fedlit.networks", "fedlit.heads"), "model.network"),
    "losses": Page("Losses", ("fedlit.losses",), "training_step"),
    "aggregators": Page("Aggregators", ("fedlit.aggregation",), "trainer.aggregator"),
    "encoders": Page("Encoders", ("fedlit.encoders",), "trainer.upload_encoder"),
    "server_optimizers": Page("Optimisers of the server", ("fedlit.server_optimizers",), "trainer.server_optimizer"),
    "privacy": Page("Privacy", ("fedlit.privacy",), "trainer.privacy", ("ClientLevelDP",)),
    "callbacks": Page(
        "Callbacks", ("fedlit.callbacks",), "trainer.callbacks", ("FederationCallback", "StopAt", "Patience")
    ),
}
INTRODUCTION = """\
# Options

From signatures and docstrings, as `--help` shows them. Those of each method stand on [its page](/methods/index.md).
"""


def setup(app: "Sphinx") -> dict[str, bool]:
    app.connect("builder-inited", write_reference_pages)
    return {"parallel_read_safe": True}


def write_reference_pages(app: "Sphinx") -> None:
    for name, page in PAGES.items():
        write(f"reference/{name}.md", text_of(page))
    entries = "".join(f"{name}\n" for name in PAGES)
    write("reference/index.md", f"{INTRODUCTION}\n```{{toctree}}\n:maxdepth: 1\n\n{entries}```\n")


def text_of(page: Page) -> str:
    parts = [f"# {page.title}", f"In a recipe or a method: `{page.option}`."]
    things = [thing for module in page.modules for thing in public(import_module(module), page.names)]
    if len(things) > 1 and not page.names:
        parts.append(as_markdown(inspect.getdoc(import_module(page.modules[0])) or ""))
    for thing in things:
        parts += [f"## {thing.__name__}", f"`{path(thing, page)}`", description(thing)]
        given = options(thing, page.prefix)
        if given:
            parts.append(given)
        parts.append(example(thing))
    return "\n\n".join(part for part in parts if part) + "\n"


def public(module: Any, names: tuple[str, ...]) -> list[Callable[..., Any]]:
    """Classes and functions of a module that have a text of their own, in its order."""
    if names:
        return [getattr(module, name) for name in names]
    listed = getattr(module, "__all__", [name for name in vars(module) if not name.startswith("_")])
    things = [getattr(module, name) for name in listed]
    here = module.__name__
    own = [thing for thing in things if getattr(thing, "__module__", "").startswith(here) and thing.__doc__]
    kinds = [thing for thing in own if inspect.isclass(thing) or inspect.isfunction(thing)]
    return [thing for thing in kinds if not (inspect.isclass(thing) and issubclass(thing, Exception))]


def path(thing: Callable[..., Any], page: Page) -> str:
    """What `class_path` says: the shortest that leads to it."""
    for module in page.modules:
        if getattr(import_module(module), thing.__name__, None) is thing:
            return f"{module}.{thing.__name__}"
    return f"{thing.__module__}.{thing.__name__}"
