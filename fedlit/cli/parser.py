"""The parser of the command line: LightningCLI's, with one-line errors, short help, and functions in place of classes.

Networks that are not given `num_classes` take that of the data. A config may not name callables of the standard
library, `torch.load` or `torch.hub`: none of them builds a network, an optimiser or data, and each would run before
what it returns is refused. This catches slips and the plainest attacks only: a config is a program (docs/security.md).
"""

import re
import sys
import sysconfig
from argparse import SUPPRESS, Action, ArgumentError, HelpFormatter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import Parameter, isclass, isfunction, signature
from pathlib import Path
from pkgutil import resolve_name
from types import ModuleType
from typing import Any, NamedTuple, NoReturn, get_args

import torch
from jsonargparse import DefaultHelpFormatter, Namespace
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn
from torchmetrics import Metric

from fedlit import methods
from fedlit.cli.messages import in_one_line, with_hint, with_variables
from fedlit.cli.recipes import given_options, joined, parsed, typed_values
from fedlit.cli.refusal import DEBUG, refuse
from fedlit.data import FederatedData
from fedlit.data.datasets import published_classes

STANDARD = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
NUM_CLASSES = "num_classes"
SUBCLASSES = re.compile(r", known subclasses: (.*)\)$", re.DOTALL)
MOST = 12  # classes that the help of an option names
OTHERS = ("torch", "torchvision", "torchmetrics", "lightning", "jsonargparse")  # of their many classes, a few
USUAL = ("SGD", "Adam", "AdamW", "StepLR", "CosineAnnealingLR", "TensorBoardLogger", "CSVLogger", "MulticlassF1Score")
NETWORKS = ("fedlit.networks.", "fedlit.heads.Pretrained")


class Parser(LightningArgumentParser):
    """A parser with errors in one line, which name the nearest option for a slip.

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
        message = with_hint(message, self._names())
        if not self.exit_on_error:  # the parser of a class: the one around it puts its option's name before the message
            raise ArgumentError(None, message) from ex
        if DEBUG:
            raise ValueError(message) from ex
        refuse(with_variables(in_one_line(message), sys.argv[1:]))

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


class ShortHelp(DefaultHelpFormatter):
    """Options without the names of environment variables, and with a few of the classes that they take."""

    def add_usage(self, usage: str | None, actions: Iterable[Action], *args: Any, **kwargs: Any) -> None:
        """The command alone: all options follow below. Of a class, no command."""
        actions = [*actions]
        is_for_name = len(args) > 1  # with an empty prefix, it becomes the name of subcommands
        if is_for_name:
            super().add_usage(usage, actions, *args, **kwargs)
        elif any("--help" in action.option_strings for action in actions):
            super().add_usage(f"{self._prog.replace('[options] ', '')} [options]", actions, *args, **kwargs)

    def add_argument(self, action: Action) -> None:
        """The help of one class is named with the option that takes it."""
        if not action.dest.endswith(".help"):
            super().add_argument(action)

    def _format_action_invocation(self, action: Action) -> str:
        return HelpFormatter._format_action_invocation(self, action)

    def _expand_help(self, action: Action) -> str:
        return SUBCLASSES.sub(
            lambda found: f", such as {such_as(found[1].split(', '))}; of one: --{action.dest}.help NAME)",
            super()._expand_help(action),
        )


def such_as(paths: list[str]) -> str:
    """A few classes of many: fedlit's and the user's own, else the usual ones of torch.

    Example:
        >>> such_as(["torch.optim.ASGD", "torch.optim.SGD", "torch.optim.Adam"])
        'SGD, Adam'
        >>> such_as(["torch.nn.Linear", "fedlit.networks.LeNet5", "fedlit.losses.Inner", "my.Net"])
        'LeNet5, Net'
    """
    own = [path for path in paths if path.partition(".")[0] not in OTHERS]
    if any(path.startswith(NETWORKS) for path in own):
        own = [path for path in own if path.startswith(NETWORKS) or not path.startswith("fedlit.")]
    names = [path.rpartition(".")[2] for path in own or paths]
    usual = names if own else [name for name in USUAL if name in names]
    return ", ".join((usual or names)[:MOST])


def was_typed_null(option: str) -> bool:
    """Whether what was typed for an option, or for one that ends like it, is YAML's null and not the word None."""
    for name, value in typed_values(sys.argv[1:]):
        if value and f".{name.replace('.init_args', '')}".endswith(f".{option}") and parsed(value) is None:
            return True
    return False


def with_functions(args: list[str]) -> list[str]:
    """The arguments with `--model.network FUNCTION` in the form that may have arguments, as a class may.

    jsonargparse takes the name of a function for the function itself, and wants it to say `-> nn.Module`.
    """
    method = method_of(args)
    parameters = signature(method).parameters if method is not None else {}
    found = []
    for arg in joined(args):
        option, _, value = arg.partition("=")
        parameter = parameters.get(option.removeprefix("--model."))
        if parameter is not None and _takes_factory(parameter.annotation) and isfunction(_resolved(value)):
            arg = f"{option}={{class_path: {value}}}"
        found.append(arg)
    return found


def _takes_factory(hint: Any) -> bool:
    """Whether it is a `NetworkFactory`, or may be one, by whichever module's `Callable` it is written."""
    return any(get_args(part) == get_args(methods.NetworkFactory) for part in (hint, *get_args(hint)))


def method_of(args: list[str]) -> type | None:
    """The class of the method; None where there is no such class."""
    name = ""
    for option, value in given_options(args):
        if option in ("model", "model.class_path") and isinstance(value, str):
            name = value
    found = _resolved(name) or getattr(methods, name, None)
    return found if isclass(found) else None


def _resolved(path: str) -> Any:
    """What a dotted path leads to; None if it cannot be imported, which is reported elsewhere."""
    try:
        return resolve_name(path) if "." in path else None
    except Exception:  # a user's module raises what it likes
        return None


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
        args: Its arguments, with defaults.
        is_required: Whether `num_classes` has no default.
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
