"""Options of a run as text by name, and which of them differ when it is resumed."""

from collections.abc import Mapping
from functools import partial
from inspect import isclass, isroutine, signature
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlit.data.in_words import in_words
from fedlit.engine.lightning_hooks import trial_training
from fedlit.engine.optimisation import as_list
from fedlit.engine.state import FederationState
from fedlit.methods.base import twin
from fedlit.rng import isolated


def chosen_values(state: FederationState) -> dict[str, Any]:
    """The options of trainer, data, partition, method and optimiser that are plain values."""
    parts: dict[str, Mapping[str, Any]] = {
        "trainer": vars(state.options),
        "data": arguments_of(state.data),
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
    if state.data.train_dataset is not None:  # given as objects, so none was chosen by name
        values.pop("data.dataset", None)
    return values


def title_of(state: FederationState) -> str:
    """The method and its data, for pictures."""
    return f"{type(state.module).__name__} on {in_words(state.data)}"


def arguments_of(made: object) -> dict[str, Any]:
    """The attributes that have the name of a constructor's argument."""
    names: set[str] = set()
    for kind in type(made).__mro__:
        if "__init__" in vars(kind):
            names |= signature(vars(kind)["__init__"]).parameters.keys()
    return {name: value for name, value in vars(made).items() if name in names}


NOT_THERE = "none"
# How long, how fast, where and what is reported: the rounds themselves are the same.
NOT_COMPARED = {
    "trainer": {
        "num_rounds",
        "save_every_n_rounds",
        "accelerator",
        "devices",
        "num_nodes",
        "processes_per_device",
        "personal_memory",
        "logger",
        "callbacks",
        "default_root_dir",
        "run_name",
        "fast_dev_run",
        "enable_progress_bar",
        "report",
        "enable_checkpointing",
        "max_time",
        "profiler",
    },
    "data": {"root", "partition", "train_dataset", "test_dataset", "num_workers"},
    "model": {"optimizer"},
}
MADE_WITH = ("fedlit", "torch", "cpu")  # what bits depend on
DEPTH = 4  # of what stands in what
FEW = 32  # values of a tensor that are written one by one


class Change(NamedTuple):
    """An option that is not what it was."""

    option: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"`{self.option}`: {self.before} -> {self.now}"


def choices(state: FederationState) -> dict[str, str]:
    """The options of trainer, data and method, the layers of its network and its optimiser, as text."""
    parts = {
        "trainer": vars(state.options),
        "data": arguments_of(state.data),
        "model": {**state.module.hparams, **arguments_of(state.module)},
    }
    found: dict[str, str] = {}
    for part, values in parts.items():
        compared = {name: value for name, value in values.items() if name not in NOT_COMPARED[part]}
        found |= {f"{part}.{name}": as_text(value) for name, value in compared.items()}
    found["data.partition"] = as_text(state.data.partition)
    for name, layer in state.module.named_modules():
        if name and not list(layer.children()):
            found[f"model.{name}"] = f"{type(layer).__name__}({layer.extra_repr()})"
    return found | _of_optimizers(state)


def _of_optimizers(state: FederationState) -> dict[str, str]:
    """Settings of the first client's optimisers, which a function of the user's own may build."""
    trial = twin(state.module)
    client = state.data.client(0)
    try:
        with isolated(0), trial_training(trial, client, state.fabric):
            trial.client = client
            trial.configure_client(client)
            optimizers = as_list(trial.configure_optimizers())
    except Exception:  # a method whose stages alone have optimisers
        return {"model.optimizer": as_text(state.module.optimizer)}
    found: dict[str, str] = {}
    for number, optimizer in enumerate(optimizers):
        name = "model.optimizer" if len(optimizers) == 1 else f"model.optimizer[{number}]"
        found[name] = type(optimizer).__name__
        found |= {f"{name}.{option}": text for option, text in _of_groups(optimizer).items()}
    return found


def _of_groups(optimizer: Optimizer) -> dict[str, str]:
    """Its settings, of all groups where they differ."""
    found: dict[str, str] = {}
    for option in optimizer.param_groups[0]:
        values = [as_text(group.get(option)) for group in optimizer.param_groups]
        if option != "params":
            found[option] = values[0] if len(set(values)) == 1 else ", ".join(values)
    return found


def as_text(value: Any, depth: int = DEPTH) -> str:
    """A value as text, the same for the same value in another process.

    Example:
        >>> as_text(partial(nn.Linear, 3, bias=False)), as_text({1: [0.5, None]})
        ('Linear(3, bias=False)', '{1: [0.5, none]}')
    """
    if value is None:
        return NOT_THERE
    if isinstance(value, bool | int | float | str | Path):
        return str(value)
    if depth == 0:
        return type(value).__name__
    if isinstance(value, Tensor | np.ndarray):
        return str(value.tolist()) if np.prod(value.shape) <= FEW else f"{type(value).__name__}{list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {as_text(entry, depth - 1)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(as_text(entry, depth - 1) for entry in value) + "]"
    if isinstance(value, partial):
        return _call(value.func, value.args, value.keywords, depth)
    if isclass(value) or isroutine(value):
        return str(getattr(value, "__qualname__", "a function"))
    if hasattr(value, "keywords"):  # what the command line builds optimisers by
        return _call(getattr(value, "func", type(value)), (), value.keywords, depth)
    return _call(type(value), (), _settings(value), depth)


def _settings(value: object) -> Mapping[str, Any]:
    """The arguments that an object was made with, as far as they are known; layers are listed one by one."""
    if isinstance(value, nn.Module):
        return {}
    try:
        return arguments_of(value)
    except (TypeError, ValueError):  # of an object without attributes, or made by C
        return {}


def _call(function: Any, args: tuple, keywords: Mapping[str, Any], depth: int) -> str:
    name = getattr(function, "__qualname__", type(function).__name__)
    given = [as_text(entry, depth - 1) for entry in args]
    given += [f"{key}={as_text(entry, depth - 1)}" for key, entry in keywords.items()]
    return f"{name}({', '.join(given)})" if given else name


def changes(content: Mapping[str, Any], choices: Mapping[str, str], made_with: Mapping[str, Any]) -> list[Change]:
    """Options and versions of a resumed run that differ from those of its last rounds."""
    before = content["choices"]
    versions = content["made_with"]
    if not before:
        return [Change("options", "not in format 3", "not compared")]
    found = [Change(name, str(versions.get(name)), str(made_with.get(name))) for name in MADE_WITH]
    names = [*before, *(name for name in choices if name not in before)]
    if versions.get("fedlit") != made_with.get("fedlit"):  # another version has other options
        names = [name for name in names if name in before and name in choices]
    found += [Change(name, before.get(name, NOT_THERE), choices.get(name, NOT_THERE)) for name in names]
    return [change for change in found if change.before != change.now]
