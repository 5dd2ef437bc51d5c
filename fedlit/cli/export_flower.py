"""`fedlit export-flower`: a recipe as a small Flower app, to be run on hosts of clients' own."""

import ast
import re
import shutil
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import fedlit
from fedlit.cli.recipes import checked_recipe, find_recipe, recipe_content, written_options
from fedlit.cli.refusal import OneLineParser, refusals, refuse
from fedlit.own_modules import DOTTED, own_modules

EXAMPLES = """\
What is written: pyproject.toml, fedlit_app.py, recipe.yaml, modules of your own that the recipe names, and those of
yours that they import.
docs/deploy.md says what to do with it, step by step.

examples:
  fedlit export-flower fml_fashion.yaml my-federation
"""
STUB_NAME = "fedlit_app"
STUB = '''\
"""A recipe of fedlit as a Flower app: `flwr run . SUPERLINK`."""

from pathlib import Path

from fedlit.flower.apps import client_app, server_app

RECIPE = Path(__file__).with_name("recipe.yaml")

client = client_app(RECIPE)
server = server_app(RECIPE)
'''
PROJECT = """\
[project]
name = "{name}"
version = "1.0.0"
description = "{recipe} by fedlit."
license = "MIT"
dependencies = ["fedlit[flower]=={version}"]

[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[tool.hatch.build.targets.wheel]
packages = ["."]      # hatchling would look for a package of the app's name

[tool.flwr.app]
publisher = "fedlit"

[tool.flwr.app.components]
clientapp = "fedlit_app:client"
serverapp = "fedlit_app:server"

[tool.flwr.app.config]
folder = ""           # on the server's host: where runs are recorded and go on from; give it as an absolute path
options = ""          # of the recipe, for all hosts, as in `fedlit fit`: "--trainer.num_rounds 5"
reply-timeout = 3600  # seconds until a client that does not answer is left out of a round
join-timeout = 300    # seconds until clients that have not joined are missed
"""
NAME = re.compile(r"[a-z][a-z0-9-]*")


def main(args: list[str]) -> None:
    """Write a recipe as a Flower app, for clients on hosts of their own."""
    parser = OneLineParser("fedlit export-flower", str(main.__doc__), epilog=EXAMPLES)
    parser.add_argument("config", metavar="CONFIG", help="A recipe, of your own or of those that come with fedlit.")
    parser.add_argument("folder", metavar="FOLDER", help="Of the app, a new one; its name becomes the app's.")
    given = parser.parse_args(args)
    folder = Path(given.folder)
    try:
        recipe = Path(checked_recipe(find_recipe(given.config)))
    except ValueError as error:
        refuse(str(error).replace("`--config ", "`CONFIG` `", 1))
    if not NAME.fullmatch(folder.name):
        refuse(f"`FOLDER` names the app, in lower-case letters, digits and hyphens; got {folder.name!r}.")
    if folder.exists():
        refuse(f"`FOLDER` {folder} exists; give a new one.")
    with refusals():
        content = recipe_content(str(recipe))
        modules = own_modules(content)
        _check(modules)
        missing = _missing(content)
        _write(folder, recipe, modules)
    for name in missing:
        sys.stderr.write(f"fedlit: {name} is neither here nor installed; every host must have it.\n")
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}. Next: docs/deploy.md.")


def _write(folder: Path, recipe: Path, modules: Mapping[str, Path]) -> None:
    folder.mkdir(parents=True)
    shutil.copyfile(recipe, folder / "recipe.yaml")
    for name, path in modules.items():
        place = folder / _place(name, path)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, place)
    (folder / f"{STUB_NAME}.py").write_text(STUB)
    project = PROJECT.format(name=folder.name, recipe=recipe.name, version=fedlit.__version__)
    (folder / "pyproject.toml").write_text(project)


def _check(modules: Mapping[str, Path]) -> None:
    """Refuse what no host could import."""
    for name, path in modules.items():
        if name == STUB_NAME:
            raise ValueError(f"{path}: the app has a {name}.py of its own; give yours another name.")
        try:
            ast.parse(path.read_bytes(), path.name)
        except (SyntaxError, ValueError) as error:
            raise ValueError(f"{path} would go with the app, but is no Python: {error}.") from error


def _missing(content: Any) -> list[str]:
    """Modules by the names of which classes are asked for, and which are not here."""
    paths = {str(value) for option, value in written_options(content) if option.endswith("class_path")}
    modules = {path.partition(".")[0] for path in paths if DOTTED.fullmatch(path)}
    return sorted(name for name in modules if find_spec(name) is None)


def _place(name: str, path: Path) -> Path:
    """Where `import` looks for a module in the folder of the app."""
    folder = Path(*name.split("."))
    if path.name == "__init__.py":
        return folder / path.name
    return folder.with_name(f"{folder.name}.py")
