"""The parser of the command line: LightningCLI's, with refusals in one line and functions where classes may stand."""

import sys
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from functools import partial
from inspect import Parameter, isclass, signature
from pkgutil import resolve_name
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser
from torch import nn
from torchmetrics import Metric

from fedlit.cli.forbidden import check_calls
from fedlit.cli.help import ShortHelp
from fedlit.cli.linked import NUM_CLASSES
from fedlit.cli.messages import plain, refuse, suggestion
from fedlit.cli.refusal import DEBUG
from fedlit.cli.values import parsed, typed_values
from fedlit.federation import Federation


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
