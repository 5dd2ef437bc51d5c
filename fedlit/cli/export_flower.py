"""`fedlit export-flower`: a recipe as a small Flower app, to be run on hosts of clients' own."""

import re
import shutil
from pathlib import Path

import yaml

import fedlit
from fedlit.cli.recipes import checked_recipe, find_recipe
from fedlit.cli.refusal import OneLineParser, refuse

EXAMPLES = """\
What is written: pyproject.toml, fedlit_app.py, recipe.yaml, and files of your own that the recipe names.
docs/deploy.md says what to do with it, step by step.

examples:
  fedlit export-flower fml_fashion.yaml my-federation
"""
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
    modules = own_modules(recipe)
    folder.mkdir(parents=True)
    shutil.copyfile(recipe, folder / "recipe.yaml")
    for module in modules:
        shutil.copyfile(module, folder / module.name)
    (folder / "fedlit_app.py").write_text(STUB)
    project = PROJECT.format(name=folder.name, recipe=recipe.name, version=fedlit.__version__)
    (folder / "pyproject.toml").write_text(project)
    print(f"{folder}: {', '.join(sorted(path.name for path in folder.iterdir()))}. Next: docs/deploy.md.")


def own_modules(recipe: Path) -> list[Path]:
    """Files in the folder where one stands that a recipe names by `class_path`, or any other dotted name."""
    words = set(_words(yaml.safe_load(recipe.read_text())))
    names = {word.partition(".")[0] for word in words if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)+", word)}
    found = [Path(f"{name}.py") for name in sorted(names)]
    return [path for path in found if path.is_file()]


def _words(value: object) -> list[str]:
    if isinstance(value, dict):
        return [word for entry in value.values() for word in _words(entry)]
    if isinstance(value, list):
        return [word for entry in value for word in _words(entry)]
    return [value] if isinstance(value, str) else []
