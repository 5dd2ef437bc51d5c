"""The options and the environment of a run, as its records have them, and what of them a resumed run has changed."""

import platform
import re
from collections.abc import Mapping
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from inspect import isclass, isfunction, isroutine, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from fedlit.data import FederatedData

if TYPE_CHECKING:
    from fedlit.methods.base import FederatedModule

NOT_THERE = "none"
MADE_WITH = ("fedlit", "torch", "cpu")  # what bits depend on
DEPTH = 4  # of containers in containers
FEW = 32  # values of a tensor that are written one by one
# How long, how fast, where and what is reported: the rounds themselves are the same.
NOT_COMPARED = re.compile(
    r"trainer\.(num_rounds|save_every_n_rounds|accelerator|devices|num_nodes|processes_per_device|personal_memory)"
    r"|trainer\.(logger|callbacks|default_root_dir|run_name|fast_dev_run|enable_progress_bar|report|max_time|profiler)"
    r"|trainer\.enable_checkpointing|data\.(root|partition|train_dataset|test_dataset|num_workers)"
)


class Change(NamedTuple):
    """An option that is not what it was."""

    option: str
    before: str
    now: str

    def __str__(self) -> str:
        return f"`{self.option}`: {self.before} -> {self.now}"


def environment() -> dict[str, str | int]:
    """Versions of what computes, the processor by name, and torch's threads."""
    found: dict[str, str | int] = {}
    for name in ("fedlit", "torch", "lightning"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:  # a copy that was never installed
            found[name] = "unknown"
    return {**found, "python": platform.python_version(), "cpu": _processor(), "threads": torch.get_num_threads()}


def _processor() -> str:
    """The processor's model name; its architecture, such as x86_64, where the name is unknown."""
    cpuinfo = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*: *(\S.*)$", cpuinfo.read_text(), re.MULTILINE) if cpuinfo.is_file() else []
    return names[0].strip() if names else platform.processor() or platform.machine() or "unknown"


def arguments_of(made: object) -> dict[str, Any]:
    """The attributes that have the name of a constructor's argument."""
    names: set[str] = set()
    for kind in type(made).__mro__:
        init = vars(kind).get("__init__")
        if isfunction(init):  # else it is made by C
            names |= signature(init).parameters.keys()
    return {name: value for name, value in getattr(made, "__dict__", {}).items() if name in names}


def _arguments(options: object, data: FederatedData, method: "FederatedModule") -> dict[str, dict[str, Any]]:
    """What federation, data, partition, method and optimiser were made with."""
    parts = {
        "trainer": vars(options),
        "data": arguments_of(data),
        "data.partition": arguments_of(data.partition),
        "model": {**method.hparams, **arguments_of(method)},
    }
    try:
        optimizer = method.optimizer([nn.Parameter(torch.zeros(1))])
    except Exception:  # a function of the user's own, which takes the parameters of its network only
        return parts
    parts["model"]["optimizer"] = type(optimizer).__name__
    parts["model.optimizer"] = optimizer.defaults
    return parts


def chosen_values(options: object, data: FederatedData, method: "FederatedModule") -> dict[str, Any]:
    """The options of trainer, data, partition, method and optimiser that are plain values."""
    parts = _arguments(options, data, method)
    if data.train_dataset is not None:  # given as objects, so none was chosen by name
        parts["data"].pop("dataset", None)
    values: dict[str, Any] = {"method": type(method).__name__, "partition": type(data.partition).__name__}
    for part, given in parts.items():
        for name, value in given.items():
            if isinstance(value, bool | int | float | str | Path):
                values[f"{part}.{name}"] = str(value) if isinstance(value, Path) else value
    return values


def choices(options: object, data: FederatedData, method: "FederatedModule") -> dict[str, str]:
    """The options of trainer, data, method and optimiser, and the layers of the network, as text."""
    found: dict[str, str] = {}
    for part, given in _arguments(options, data, method).items():
        found |= {f"{part}.{name}": as_text(value) for name, value in given.items()}
    found = {name: text for name, text in found.items() if not NOT_COMPARED.fullmatch(name)}
    for name, layer in method.named_modules():
        if name and not list(layer.children()):
            found[f"model.{name}"] = f"{type(layer).__name__}({layer.extra_repr()})"
    return found


def as_text(value: Any, depth: int = DEPTH) -> str:
    """A value as text, the same for the same value in another process.

    Example:
        >>> as_text(partial(nn.Linear, 3, bias=False)), as_text({1: [0.5, None]})
        ('Linear(3, bias=False)', '{1: [0.5, none]}')
    """
    inner = partial(as_text, depth=depth - 1)
    if value is None:
        return NOT_THERE
    if isinstance(value, bool | int | float | str | Path):
        return str(value)
    if depth == 0:
        return type(value).__name__
    if isinstance(value, Tensor | np.ndarray):
        return str(value.tolist()) if np.prod(value.shape) <= FEW else f"{type(value).__name__}{list(value.shape)}"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {inner(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, list | tuple | set | frozenset):
        return "[" + ", ".join(map(inner, value)) + "]"
    if isclass(value) or isroutine(value):
        return str(getattr(value, "__qualname__", "a function"))
    keywords = getattr(value, "keywords", None)
    if keywords is None:  # neither a partial, nor what the command line builds optimisers by
        keywords = {} if isinstance(value, nn.Module) else arguments_of(value)  # layers are listed one by one
    function = getattr(value, "func", type(value))
    given = [*map(inner, getattr(value, "args", ())), *(f"{key}={inner(entry)}" for key, entry in keywords.items())]
    name = getattr(function, "__qualname__", type(function).__name__)
    return f"{name}({', '.join(given)})" if given else name


def changes(content: Mapping[str, Any], choices: Mapping[str, str], made_with: Mapping[str, Any]) -> list[Change]:
    """Options and versions of a resumed run that differ from those of its last rounds."""
    before = content["choices"]
    versions = content["made_with"]
    found = [Change(name, str(versions.get(name, "unknown")), str(made_with[name])) for name in MADE_WITH]
    names = [*before, *(name for name in choices if name not in before)]
    if versions.get("fedlit") != made_with.get("fedlit"):  # another version has other options
        names = [name for name in names if name in before and name in choices]
    found += [Change(name, before.get(name, NOT_THERE), choices.get(name, NOT_THERE)) for name in names]
    return [change for change in found if change.before != change.now]
