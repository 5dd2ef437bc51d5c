"""A cell of a study, resolved: every option of its runs, checked as the command line checks them."""

import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr
from typing import Any

import yaml
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedlit.cli.app import FederatedCLI
from fedlit.cli.recipes import with_recipes_found
from fedlit.studies.options import as_arguments
from fedlit.studies.study import Cell


def resolve(cell: Cell, overrides: list[str]) -> dict[str, Any]:
    """Every option of a cell; its model and data are built, so that what is wrong with it is said before any run.

    Args:
        cell: Of a study.
        overrides: Arguments of the command that hold for all cells.
    """
    arguments = ["fit", "--config", cell.recipe]
    for options in cell.options:
        arguments += as_arguments(options)
    try:
        with typed([*arguments, *overrides]):
            cli = FederatedCLI()
    except (ValueError, TypeError, RuntimeError, OSError, MisconfigurationException) as error:
        raise ValueError(f"{cell}: {_as_written(str(error), overrides)}") from error
    config = cli.config["fit"].clone()
    config.pop("config", None)
    dumped = cli._parser("fit").dump(config, skip_unset=False)
    return yaml.safe_load(dumped)


def _as_written(message: str, overrides: list[str]) -> str:
    """Options of a study stand there without the dashes of a command line."""
    if any(override.partition("=")[0] in message for override in overrides):
        return message
    return message.replace("`--config ", "`recipe: ").replace("`--", "`")


@contextmanager
def typed(arguments: list[str]) -> Iterator[None]:
    """As if a user had typed the arguments; a refusal is an error instead of the end."""
    before = sys.argv[1:]
    said = io.StringIO()
    try:
        sys.argv[1:] = with_recipes_found(arguments)
        with redirect_stderr(said):
            yield
    except SystemExit as end:
        lines = said.getvalue().strip().splitlines() or ["refused"]
        raise ValueError(lines[-1].removeprefix("fedlit: error: ")) from end
    finally:
        sys.argv[1:] = before
