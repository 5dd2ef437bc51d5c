"""The parser of the command line: LightningCLI's, with one-line errors and functions where classes may stand.

Networks that are not given `num_classes` take that of the data. A config may not name callables of the standard
library, `torch.load` or `torch.hub`: none of them builds a network, an optimiser or data, and each would run before
what it returns is refused. This catches slips and the plainest attacks only: a config is a program (docs/security.md).
"""

import sys
import sysconfig
from argparse import SUPPRESS
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, isclass, signature
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, NamedTuple, NoReturn

import torch
from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn
from torchmetrics import Metric

from fedlit.cli.help import ShortHelp
from fedlit.cli.inherited import given_options
from fedlit.cli.messages import plain, refuse, suggestion
from fedlit.cli.refusal import DEBUG
from fedlit.cli.values import parsed, typed_values
from fedlit.data import FederatedData
from fedlit.data.datasets import published_classes
from fedlit.federation import Federation

STANDARD = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
NUM_CLASSES = "num_classes"


class Parser(LightningArgumentParser):
    """A parser that refuses in one line, in the user's words, with the nearest option for a slip.

    Attributes:
        complete: Sets options that follow from others, before they are printed (`--print_config`) or saved.
    """

    complete: Callable[[Namespace], None] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"formatter_class": ShortHelp, **kwargs})

    def dump(self, cfg: Namespace, *args: Any, **kwargs: Any) -> str:
        if self.complete is not None:
            cfg = cfg.clone()
            self.complete(cfg)
        return super().dump(cfg, *args, **kwargs)

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if DEBUG:
            raise ValueError(message) from ex
        message = plain(message)
        refuse(message + suggestion(message, self._names()))

    def parse_args(self, args: Sequence[str] | None = None, *more: Any, **kwargs: Any) -> Any:  # type: ignore[override]
        if args is not None and len(args) == 1:
            option, _, value = args[0].partition("=")
            if value == "None" and was_typed_null(option.lstrip("-")):
                # An option two classes deep: jsonargparse has read `null`, and writes what it read as Python does.
                args = [f"{option}=null"]
        return super().parse_args(args, *more, **kwargs)

    def instantiate_classes(self, cfg: Namespace, **kwargs: Any) -> Namespace:
        if cfg.get("subcommand"):
            cfg = cfg.clone()
            for name in ("trainer", "model", "data"):
                check_calls(cfg[cfg.subcommand].get(name), name)
            check_nulls(cfg[cfg.subcommand].get("trainer"), "trainer", Federation)
            for name in ("model", "data"):
                check_nulls(cfg[cfg.subcommand].get(name), name)
            cfg[cfg.subcommand].model = with_factories(cfg[cfg.subcommand].get("model"))
        # Lightning calls it by the name that jsonargparse gave up in 4.49.
        instantiate = getattr(super(), "instantiate", None) or super().instantiate_classes
        return instantiate(cfg, **kwargs)

    def add_class_arguments(self, class_type: type, *args: Any, **kwargs: Any) -> list[str]:
        added = super().add_class_arguments(class_type, *args, **kwargs)
        if isclass(class_type) and issubclass(class_type, nn.Module) and not issubclass(class_type, Metric):
            self._leave_to_link()
        return added

    def _leave_to_link(self) -> None:
        """A network's `num_classes` may be missing here: `link_num_classes` gives it that of the data, or refuses."""
        for action in self._actions:
            if action.dest == NUM_CLASSES:
                action.required = False

    def add_function_arguments(self, *args: Any, **kwargs: Any) -> list[str]:
        added = super().add_function_arguments(*args, **kwargs)
        self._leave_to_link()
        for name in added:
            default = self.get_default(name)
            if isinstance(default, Namespace | dict) and "class_path" in default:
                # A class that the function itself calls: jsonargparse would ask for its arguments, and build it.
                self.set_defaults({name: SUPPRESS})
        return added

    def _names(self) -> set[str]:
        parsers = [self]
        for action in self._actions:
            if isinstance(action.choices, dict):
                parsers += action.choices.values()
        return {action.dest for parser in parsers for action in parser._actions}


def was_typed_null(option: str) -> bool:
    """Whether what was typed for an option, or for one that ends like it, is YAML's null and not the word None."""
    for name, value in typed_values(sys.argv[1:]):
        if value and f".{name.replace('.init_args', '')}".endswith(f".{option}") and parsed(value) is None:
            return True
    return False


def check_nulls(config: Any, path: str, kind: Callable | None = None) -> None:
    """Refuse `null` for an option that has no such value: jsonargparse lets it stand for any type.

    Args:
        config: Options, or a class with its options, or several of them.
        path: As the user types it.
        kind: What the options are arguments of, where they do not say.
    """
    if isinstance(config, list):
        for entry in config:
            check_nulls(entry, path)
    if not isinstance(config, Namespace | dict):
        return
    options = config
    if "class_path" in config:
        kind = resolve_name(config["class_path"])
        options = config.get("init_args") or {}
    parameters = signature(kind).parameters if kind is not None else {}
    for name, value in dict(vars(options) if isinstance(options, Namespace) else options).items():
        if value is None and name in parameters and not _takes_none(parameters[name]):
            raise ValueError(f"`{path}.{name}` must have a value, got null.")
        check_nulls(value, f"{path}.{name}")


def _takes_none(parameter: Parameter) -> bool:
    return parameter.default is None or any(word in str(parameter.annotation) for word in ("None", "Optional", "Any"))


def with_factories(config: Any) -> Any:
    """The config with what functions build, such as torchvision's networks, as partials: a method calls them itself."""
    if isinstance(config, list):
        return [with_factories(value) for value in config]
    if isinstance(config, dict):
        return {key: with_factories(value) for key, value in config.items()}
    if not isinstance(config, Namespace):
        return config
    if "class_path" in config:
        builder = resolve_name(config.class_path)
        if not isclass(builder):
            return partial(builder, **config.get("init_args", Namespace()).as_dict())
    return Namespace(**{key: with_factories(value) for key, value in vars(config).items()})


def check_calls(config: Any, option: str) -> None:
    """Refuse a config that names a callable which may not be called.

    Args:
        config: Options, or a class with its options, or several of them.
        option: As the user types it.
    """
    if isinstance(config, Namespace):
        config = vars(config)
    if isinstance(config, list | tuple):
        for entry in config:
            check_calls(entry, option)
    elif isinstance(config, Mapping):
        named = config.get("class_path")
        if isinstance(named, str) and is_forbidden(named):
            raise ValueError(
                f"`{option}` must not be {named}: a config may call nothing of the standard library or torch.hub, nor "
                "torch.load (docs/security.md)."
            )
        for name, value in config.items():
            check_calls(value, option if name == "init_args" else f"{option}.{name}")


def is_forbidden(path: str) -> bool:
    """Whether a dotted path leads to, or through, the standard library, `torch.load` or `torch.hub`.

    Example:
        >>> [is_forbidden(path) for path in ("os.system", "torch.serialization.os.system", "torch.hub.load")]
        [True, True, True]
        >>> [is_forbidden(path) for path in ("torch.nn.Linear", "fedlit.networks.MLP")]
        [False, False]
    """
    return any(_is_standard(part) or _loads(part) for part in _parts(path))


def _parts(path: str) -> Iterator[Any]:
    """What the names of a dotted path stand for, one after the other; of a partial, what it calls."""
    names = path.split(".")
    for end in range(1, len(names) + 1):
        try:
            found = resolve_name(".".join(names[:end]))
        except Exception:  # no such name, or a user's module may raise anything; reported elsewhere
            return
        while isinstance(found, partial):
            found = found.func
        yield found


def _is_standard(part: Any) -> bool:
    """Whether a module, a class or a function is of the standard library, and not a file of that name elsewhere."""
    name = part.__name__ if isinstance(part, ModuleType) else getattr(part, "__module__", None)
    if not isinstance(name, str) or name.partition(".")[0] not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(name), "__file__", None)
    return file is None or any(Path(file).resolve().is_relative_to(place) for place in STANDARD)


def _loads(part: Any) -> bool:
    return part is torch.load or part is torch.hub or getattr(part, "__module__", None) == torch.hub.__name__


class SizedNetwork(NamedTuple):
    """A class or function with `num_classes` that builds a network.

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


def _networks(value: Any, option: str) -> Iterator[SizedNetwork]:
    """Classes and functions that build networks, within an option of the model."""
    if isinstance(value, list):  # an entry's option is named without its index
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
            yield SizedNetwork(option, args, parameter is not None and parameter.default is Parameter.empty)
    for name, part in parts.items():
        yield from _networks(part, option if name == "init_args" else f"{option}.{name}")
