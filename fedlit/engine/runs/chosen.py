"""What was chosen for a run, as plain values by name: for TensorBoard's hparams."""

from collections.abc import Mapping
from inspect import signature
from pathlib import Path
from typing import Any

from fedlit.data import FederatedData
from fedlit.data.in_words import in_words
from fedlit.engine.states.state import FederationState


def chosen_values(state: FederationState) -> dict[str, Any]:
    """The options of trainer, data, partition, method and optimiser that are plain values."""
    parts: dict[str, Mapping[str, Any]] = {
        "trainer": vars(state.options),
        "data": _of_data(state.data),
        "data.partition": arguments_of(state.data.partition),
        "model": {**state.module.hparams, **arguments_of(state.module)},
        "model.optimizer": getattr(state.module.optimizer, "keywords", {}),  # a partial, from the command line
    }
    values: dict[str, Any] = {
        "method": type(state.module).__name__,
        "partition": type(state.data.partition).__name__,
    }
    for part, arguments in parts.items():
        for name, value in arguments.items():
            if isinstance(value, Path):
                value = str(value)
            if isinstance(value, bool | int | float | str):
                values[f"{part}.{name}"] = value
    return values


def title_of(state: FederationState) -> str:
    """The method and its data, for pictures."""
    return f"{type(state.module).__name__} on {in_words(state.data)}"


def _of_data(data: FederatedData) -> dict[str, Any]:
    """The options of the data; whoever gave data sets of his own has chosen none by name."""
    arguments = arguments_of(data)
    if data.train_dataset is not None:
        del arguments["dataset"]
    return arguments


def arguments_of(made: object) -> dict[str, Any]:
    """The attributes that bear the name of a constructor's argument: Lightning's own switches are left out."""
    names: set[str] = set()
    for kind in type(made).__mro__:
        if "__init__" in vars(kind):
            names |= signature(vars(kind)["__init__"]).parameters.keys()
    return {name: value for name, value in vars(made).items() if name in names}
