"""The parser of the command line: LightningCLI's, with refusals in one line and functions where classes may stand."""

from functools import partial
from inspect import isclass, signature
from pkgutil import resolve_name
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from fedlit.cli.messages import known_classes, plain, refuse, suggestion
from fedlit.cli.refusal import DEBUG
from fedlit.data import FederatedData


class Parser(LightningArgumentParser):
    """A parser that refuses in one line, in the user's words, with the nearest option for a slip."""

    def error(self, message: str, ex: Exception | None = None) -> NoReturn:
        if DEBUG:
            raise ValueError(message) from ex
        message = plain(message)
        refuse(message + suggestion(message, self._names()))

    def instantiate_classes(self, cfg: Namespace, **kwargs: Any) -> Namespace:
        if cfg.get("subcommand"):
            cfg = cfg.clone()
            cfg[cfg.subcommand].model = with_factories(cfg[cfg.subcommand].get("model"))
        # Lightning calls it by the name that jsonargparse gave up in 4.49.
        instantiate = getattr(super(), "instantiate", None) or super().instantiate_classes
        return instantiate(cfg, **kwargs)

    def _names(self) -> set[str]:
        parsers = [self]
        for action in self._actions:
            if isinstance(action.choices, dict):
                parsers += action.choices.values()
        options = {action.dest for parser in parsers for action in parser._actions}
        return options | set(signature(FederatedData).parameters) | known_classes()


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
