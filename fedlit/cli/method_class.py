"""The class of a command's method: functions for its networks, and annotations that the parser would need."""

import sys
from collections.abc import Callable, Iterable
from inspect import Parameter, isclass, isfunction, signature
from pkgutil import resolve_name
from typing import Any, get_args, get_origin

import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from fedlit import methods
from fedlit.cli.recipes import recipe_content, recipe_files, with_values
from fedlit.cli.values import parsed, typed_values
from fedlit.methods import NetworkFactory

BUILDERS: dict[
    type, str
] = {  # annotations by which a method is given what builds a thing, not the thing; and where they are
    Optimizer: "OptimizerCallable` (lightning.pytorch.cli)",
    LRScheduler: "LRSchedulerCallable` (lightning.pytorch.cli)",
    nn.Module: "NetworkFactory` (fedlit.methods)",
}
USUAL: dict[str, type] = {
    "optimizer": Optimizer,
    "network": nn.Module,
}  # what arguments of these names are in every method


def with_functions(args: list[str]) -> list[str]:
    """The arguments with `--model.network FUNCTION` in the form that may have arguments, as a class may.

    jsonargparse takes the name of a function for the function itself, and wants it to say `-> nn.Module`.
    """
    options = tuple(f"--model.{name}" for name in _factory_options(method_of(args)))
    return with_values(args, options, _as_spec)


def _as_spec(value: str) -> str:
    if isfunction(_imported(value)):
        return f"{{class_path: {value}}}"
    return value


def _factory_options(method: type | None) -> list[str]:
    """Arguments of a method that take what builds a network."""
    if method is None:
        return []
    try:
        parameters = signature(method, eval_str=True).parameters
    except (NameError, TypeError, ValueError):  # reported elsewhere
        return []
    return [name for name, parameter in parameters.items() if _takes_factory(parameter.annotation)]


def _takes_factory(hint: Any) -> bool:
    """Whether it is a `NetworkFactory`, or may be one, by whichever module's `Callable` it is written."""
    parts = [hint, *get_args(hint)]
    return any(get_origin(part) is Callable and get_args(part) == get_args(NetworkFactory) for part in parts)


def method_of(args: list[str]) -> type | None:
    """The class that was typed for `--model`, or that the last recipe names; None where there is no such class."""
    named = None
    for recipe in recipe_files(args):
        named = _class_path(_of_model(recipe)) or named
    for option, value in typed_values(args):
        if option in ("model", "model.class_path") and value:
            named = _class_path(parsed(value)) or named
    found = _imported(named) if named else None
    if found is None:
        found = getattr(methods, named or "", None)
    return found if isclass(found) else None


def unannotated(args: list[str]) -> str | None:
    """What to write in the method's `__init__`, where the command line cannot know what to build for an argument."""
    method = method_of(args)
    if method is None:
        return None
    missing: dict[str, str] = {}
    for name, parameter in signature(method).parameters.items():
        if _is_annotated(parameter, method):
            continue
        kind = _kind(name, _given(name, args))
        if kind is not None:
            missing[name] = BUILDERS.get(kind, f"{kind.__qualname__}` ({kind.__module__})")
    if not missing:
        return None
    options = " and ".join(f"`model.{name}`" for name in missing)
    annotations = ", ".join(f"`{name}: {annotation}" for name, annotation in missing.items())
    where = f"{method.__module__}.{method.__qualname__}"
    return f"{options}: annotate in `__init__` of {where} what the command line is to build: {annotations}."


def _is_annotated(parameter: Parameter, method: type) -> bool:
    """Whether it says what it takes, in words that its module knows."""
    annotation = parameter.annotation
    if isinstance(annotation, str):
        try:
            eval(annotation, vars(sys.modules[method.__module__]))
        except Exception:  # a name that was not imported, or no expression at all
            return False
    return annotation is not Parameter.empty


def _given(name: str, args: list[str]) -> Iterable[str]:
    """What was given for an argument of the method: classes, functions, or words that may name one."""
    for recipe in recipe_files(args):
        options = _of_model(recipe)
        if isinstance(options, dict) and isinstance(options.get("init_args"), dict):
            named = _class_path(options["init_args"].get(name))
            if named:
                yield named
    for option, value in typed_values(args):
        if option in (f"model.{name}", f"model.{name}.class_path", f"model.init_args.{name}") and value:
            yield _class_path(parsed(value)) or value


def _kind(name: str, given: Iterable[str]) -> type | None:
    """What is to be built, as the annotation has it; None where what was given is no class."""
    for path in given:
        found = _imported(path) or getattr(torch.optim, path, None)
        if isclass(found):
            return next((kind for kind in BUILDERS if issubclass(found, kind)), found)
        if callable(found) or name in USUAL:
            return USUAL.get(name, nn.Module)
    return None


def _of_model(recipe: str) -> Any:
    content = recipe_content(recipe)
    return content.get("model") if isinstance(content, dict) else None


def _class_path(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("class_path")
    return value if isinstance(value, str) else None


def _imported(path: str) -> Any:
    """What a dotted path leads to; None if it cannot be imported, which is reported elsewhere."""
    if "." not in path:
        return None
    try:
        return resolve_name(path)
    except Exception:  # a user's module raises what it likes
        return None
