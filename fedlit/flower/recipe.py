"""A recipe as it is on one host: method, data and federation, with options of the run and of that host."""

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from fedlit.cli.app import FederatedCLI
from fedlit.cli.recipes import with_recipes_found
from fedlit.data import FederatedData
from fedlit.federation import Federation
from fedlit.methods.base import FederatedModule

OF_THE_HOST = ("data.", "trainer.accelerator", "trainer.num_threads")  # what a node may say for itself


class Experiment(NamedTuple):
    """What a recipe describes."""

    federation: Federation
    model: FederatedModule
    data: FederatedData


def experiment(config: Path, options: list[str]) -> Experiment:
    """What a recipe describes, with options as they are typed."""
    before = sys.argv[1:]
    try:
        sys.argv[1:] = with_recipes_found(["fit", "--config", str(config), *options])
        cli = FederatedCLI()
    except SystemExit as error:  # what was wrong is printed above
        raise ValueError(f"{config.name} cannot be used with {shlex.join(options)}: see the log above.") from error
    finally:
        sys.argv[1:] = before
    return Experiment(cli.trainer, cli.model, cli.datamodule)  # type: ignore[arg-type]  # Lightning's classes


def options_of_run(run_config: Mapping[str, Any]) -> list[str]:
    """What `flwr run --run-config` changes of the recipe, for all hosts: `options="--trainer.num_rounds 5"`."""
    return shlex.split(str(run_config.get("options", "")))


def options_of_node(node_config: Mapping[str, Any]) -> list[str]:
    """What a host says for itself: where its data are, and what it computes with."""
    found = []
    for name, value in node_config.items():
        if name.startswith(OF_THE_HOST):
            found.append(f"--{name}={str(value).lower() if isinstance(value, bool) else value}")
    return found
