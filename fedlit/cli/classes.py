"""Classes that a user may name: by short names, what they cannot do without, and which is meant by a slip."""

import difflib
import re
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from inspect import isclass, isfunction, signature
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType, NoneType
from typing import Any

import torch
import torchmetrics.classification

from fedlit import aggregation, augment, callbacks, encoders, methods, networks, partition, privacy, server_optimizers

OWN = (methods, networks, partition, augment, callbacks, aggregation, encoders, privacy, server_optimizers)
MODULES = (*OWN, torch.optim, torch.optim.lr_scheduler, torchmetrics.classification)


def known_classes() -> set[str]:
    """Names that a user may give for a method, a network, a partition ..."""
    return {name for module in MODULES for name in _public(module, functions=False)}


def needs(value: Any) -> set[str]:
    """Arguments that a class must be given, whether it is named in full or in short; none if no class is named.

    Example:
        >>> sorted(needs("StepLR"))
        ['optimizer', 'step_size']
        >>> needs("7")
        set()
    """
    required: set[str] = set()
    if not isinstance(value, str) or re.fullmatch(r"[A-Za-z_][\w.]*", value) is None:
        return required
    for kind in _named(value):
        try:
            arguments = signature(kind).parameters.values()
        except (TypeError, ValueError):
            continue
        required |= {argument.name for argument in arguments if argument.default is argument.empty}
    return required


def _named(name: str) -> Iterator[Any]:
    """What goes by a name: one thing by its path, perhaps several by a short name."""
    if "." in name:
        try:
            yield resolve_name(name)
        except Exception:  # a user's module raises what it likes; others tell
            return
    for module in MODULES:
        if name in _public(module, functions=False):
            yield getattr(module, name)


def nearest_in(module: str, name: str) -> str | None:
    """The class or function of a module that is nearest to a name, with its path.

    Example:
        >>> nearest_in("fedlit.networks", "LeNet6")
        'fedlit.networks.LeNet5'
    """
    try:
        found = import_module(module)
    except Exception:  # a user's module raises what it likes; others tell
        return None
    near = difflib.get_close_matches(name, _public(found, functions=True), n=1, cutoff=0.65)
    return f"{module}.{near[0]}" if near else None


def nearest_module(name: str) -> str | None:
    """The file where the user stands that is nearest to the name of a module, as a module."""
    there = [path.stem for path in Path().glob("*.py") if path.stem.isidentifier()]
    near = difflib.get_close_matches(name, there, n=1, cutoff=0.75)
    return near[0] if near else None


def hidden_file(name: str) -> Path | None:
    """The module of a name where the user stands, if Python finds another one of that name: installed ones first."""
    for path in (Path(f"{name}.py"), Path(name, "__init__.py")):
        spec = find_spec(name) if path.is_file() else None
        if spec is not None and (spec.origin is None or Path(spec.origin) != path.resolve()):
            return path
    return None


def _public(module: ModuleType, functions: bool) -> set[str]:
    """Classes of a module, and perhaps functions, that are meant for others."""
    names = set()
    for name, value in vars(module).items():
        is_asked_for = isclass(value) or (functions and isfunction(value))
        if is_asked_for and value is not NoneType and not name.startswith("_"):
            names.add(name)
    return names
