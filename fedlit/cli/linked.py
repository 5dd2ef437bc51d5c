"""The number of classes of the data as that of networks, for those that are not given another."""

from collections.abc import Iterator
from inspect import Parameter, isclass, signature
from pkgutil import resolve_name
from typing import Any, NamedTuple

from jsonargparse import Namespace
from torch import nn

from fedlit.cli.kept import given_options
from fedlit.data import FederatedData
from fedlit.data.datasets import published_classes

NUM_CLASSES = "num_classes"


class Network(NamedTuple):
    """What builds a network of so many classes.

    Attributes:
        option: As it would be typed, such as `model.network`.
        args: That it is given, and defaults.
        is_required: Whether it must be given how many.
    """

    option: str
    args: Namespace
    is_required: bool


def link_num_classes(config: Namespace, args: list[str]) -> None:
    """Set `num_classes` of every network of the model that has one and is not given it.

    Where the number of classes is not known before the data are read, defaults stay.

    Args:
        config: Every option, with defaults.
        args: What was typed, with recipes found.
    """
    number = _num_classes(config.get("data"))
    given = {option for option, _ in given_options(args)}
    for network in _networks(config.get("model"), "model"):
        option = f"{network.option}.{NUM_CLASSES}"
        if number is not None and option not in given:
            network.args[NUM_CLASSES] = number
        elif network.is_required and network.args[NUM_CLASSES] is None:
            raise ValueError(f"`{option}` must be given.")


def _num_classes(data: Any) -> int | None:
    """Of the data, where it is known before they are read."""
    if not isinstance(data, Namespace):
        return None
    args = data.get("init_args") or Namespace()
    if args.get(NUM_CLASSES) is not None:
        return int(args[NUM_CLASSES])
    if resolve_name(data.class_path) is not FederatedData or args.get("train_dataset") is not None:
        return None
    return published_classes(str(args.get("dataset")))


def _networks(value: Any, option: str) -> Iterator[Network]:
    """Classes and functions that build networks, within an option of the model."""
    if isinstance(value, list):  # an entry's option is told without its place
        for entry in value:
            yield from _networks(entry, option)
    if not isinstance(value, Namespace | dict):
        return
    parts = vars(value) if isinstance(value, Namespace) else value
    args = parts.get("init_args")
    if "class_path" in parts and isinstance(args, Namespace) and NUM_CLASSES in args:
        builder = resolve_name(parts["class_path"])
        if not isclass(builder) or issubclass(builder, nn.Module):
            parameter = signature(builder).parameters.get(NUM_CLASSES)  # else it is one of its **kwargs
            yield Network(option, args, parameter is not None and parameter.default is Parameter.empty)
    for name, part in parts.items():
        yield from _networks(part, option if name == "init_args" else f"{option}.{name}")
