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
from typing import Any, NoReturn, get_args

import torch
from jsonargparse import DefaultHelpFormatter, Namespace
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn
from torchmetrics import Metric

from fedlit import methods
from fedlit.cli.messages import in_one_line, with_hint, with_variables
from fedlit.cli.recipes import given_options, joined
from fedlit.cli.refusal import DEBUG, refuse
from fedlit.data import FederatedData
from fedlit.data.datasets import published_classes

STANDARD = [Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib")]
NUM_CLASSES = "num_classes"
SUBCLASSES = re.compile(r", known subclasses: (.*)\)$", re.DOTALL)
MOST = 16  # classes that the help of an option names
OTHERS = ("torch", "torchvision", "torchmetrics", "lightning", "jsonargparse")  # of their many classes, a few
USUAL = ("SGD", "Adam", "AdamW", "StepLR", "CosineAnnealingLR", "TensorBoardLogger", "CSVLogger", "MulticlassF1Score")


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
        if args is not None and len(args) == 1 and args[0].endswith("=None"):
            # An option two classes deep: jsonargparse has read `null`, and writes what it read as Python does.
            args = [args[0].removesuffix("None") + "null"]
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
        """The command alone: all options follow below."""
        is_for_name = len(args) > 1  # with an empty prefix, it becomes the name of subcommands
        command = f"{self._prog.replace('[options] ', '')} [options]"
        super().add_usage(usage if is_for_name else command, actions, *args, **kwargs)

    def _format_action_invocation(self, action: Action) -> str:
        return HelpFormatter._format_action_invocation(self, action)

    def _expand_help(self, action: Action) -> str:
        return SUBCLASSES.sub(lambda found: f", such as {such_as(found[1].split(', '))})", super()._expand_help(action))


def such_as(paths: list[str]) -> str:
    """A few classes of many: fedlit's and the user's own, else the usual ones of torch.

    Example:
        >>> such_as(["torch.optim.ASGD", "torch.optim.SGD", "torch.optim.Adam"])
        'SGD, Adam'
        >>> such_as(["torch.nn.Linear", "fedlit.networks.LeNet5", "my.Net"])
        'LeNet5, Net'
    """
    own = [path for path in paths if path.partition(".")[0] not in OTHERS]
    names = [path.rpartition(".")[2] for path in own or paths]
    usual = names if own else [name for name in USUAL if name in names]
    return ", ".join((usual or names)[:MOST])


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
        if (
            parameter is not None
            and _takes_factory(parameter.annotation)
            and "." in value
            and isfunction(_resolved(value))
        ):
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
    found = _resolved(name) if "." in name else getattr(methods, name, None)
    return found if isclass(found) else None


def _resolved(path: str) -> Any:
    """What a path leads to; None if it cannot be imported, which is reported elsewhere."""
    try:
        return resolve_name(path)
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
    names = path.split(".")
    for end in range(1, len(names) + 1):
        found = _resolved(".".join(names[:end]))
        while isinstance(found, partial):
            found = found.func
        module = found.__name__ if isinstance(found, ModuleType) else str(getattr(found, "__module__", None))
        if found is torch.load or module == "torch.hub" or _is_standard(module):
            return True
    return False


def _is_standard(module: str) -> bool:
    """Whether a module is of the standard library, and not a file of that name elsewhere."""
    if module.partition(".")[0] not in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None)
    return file is None or any(Path(file).resolve().is_relative_to(place) for place in STANDARD)


def link_num_classes(config: Namespace, args: list[str]) -> None:
    """Set `num_classes` of every network of the model that has one and is not given it.

    Where the number of classes is not known before the data are read, defaults stay.

    Args:
        config: Every option, with defaults.
        args: What was typed, with recipes found.
    """
    number = _num_classes(config.get("data"))
    given = {option for option, _ in given_options(args)}
    for network, builder, arguments in _networks(config.get("model"), "model"):
        option = f"{network}.{NUM_CLASSES}"
        parameter = signature(builder).parameters.get(NUM_CLASSES)  # else it is one of its **kwargs
        is_required = parameter is not None and parameter.default is Parameter.empty
        if number is not None and option not in given:
            arguments[NUM_CLASSES] = number
        elif is_required and arguments[NUM_CLASSES] is None:
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


def _networks(value: Any, option: str) -> Iterator[tuple[str, Callable, Namespace]]:
    """Options of the model that build networks with `num_classes`: what builds them, and its arguments."""
    if isinstance(value, list):  # an entry's option is named without its index
        for entry in value:
            yield from _networks(entry, option)
    if not isinstance(value, Namespace | dict):
        return
    args = value.get("init_args")
    if "class_path" in value and isinstance(args, Namespace) and NUM_CLASSES in args:
        builder = resolve_name(value["class_path"])
        if not isclass(builder) or issubclass(builder, nn.Module):
            yield option, builder, args
    for name, part in (vars(value) if isinstance(value, Namespace) else value).items():
        yield from _networks(part, option if name == "init_args" else f"{option}.{name}")
