"""The command line: `fedlit fit | validate | test | predict | adapt --config recipe.yaml`, by LightningCLI.

Bad input is answered by one line and exit code 2. A recipe is looked up where the user stands, then among fedlit's own.
"""

import difflib
import os
import secrets
import sys
from functools import partial
from inspect import isclass, signature
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, NoReturn

import yaml
from jsonargparse import Namespace
from lightning.fabric import seed_everything
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import fedlit
from fedlit.cli.command import SUBCOMMANDS
from fedlit.cli.messages import in_full, known_classes, plain, suggestion
from fedlit.data import FederatedData
from fedlit.federation import Federation
from fedlit.methods import FederatedModule

DEBUG = bool(os.environ.get("FEDLIT_DEBUG"))  # show tracebacks
PARSER = {"allow_abbrev": False, "default_env": True, "env_prefix": "FEDLIT"}


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
            cfg[cfg.subcommand].model = with_factories(cfg[cfg.subcommand].model)
        # Lightning calls it by the name that jsonargparse gave up in 4.49.
        instantiate = getattr(super(), "instantiate", None) or super().instantiate_classes
        return instantiate(cfg, **kwargs)

    def _names(self) -> set[str]:
        parsers = [self]
        for action in self._actions:
            parsers += action.choices.values() if isinstance(action.choices, dict) else ()
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
    if "class_path" in config and not isclass(builder := resolve_name(config.class_path)):
        return partial(builder, **config.get("init_args", Namespace()).as_dict())
    return Namespace(**{key: with_factories(value) for key, value in vars(config).items()})


class SaveConfig(SaveConfigCallback):
    """Saves the config so that it starts the run anew, also when this run went on from a checkpoint."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs: Any) -> None:
        config = config.clone()
        config.pop("config", None)
        config.ckpt_path = None
        super().__init__(parser, config, overwrite=True, **kwargs)

    def setup(self, trainer: Federation, pl_module: FederatedModule, stage: str) -> None:
        if stage == "fit" and trainer.log_dir is not None:
            if trainer.run.round:  # the config of the rounds before stays as it is
                self.config_filename = f"config_from_round_{trainer.run.round + 1}.yaml"
            super().setup(trainer, pl_module, stage)


class FederatedCLI(LightningCLI):
    """LightningCLI with a Federation for a Trainer."""

    def __init__(self) -> None:
        super().__init__(
            FederatedModule,
            FederatedData,
            save_config_callback=SaveConfig,
            trainer_class=Federation,
            seed_everything_default=0,
            parser_kwargs={
                **PARSER,
                "prog": "fedlit",
                "description": "Federated learning for clients that differ.",
                **{name: dict(PARSER) for name in self.subcommands()},
            },
            parser_class=Parser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        chosen = [name for name in sys.argv[1:2] if name in SUBCOMMANDS]  # the parsers of the others take a moment
        return {name: {"model", "datamodule"} for name in chosen or SUBCOMMANDS}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        # LightningCLI itself insists on a Trainer here.
        parser.add_class_arguments(Federation, "trainer", instantiate=False, sub_configs=True, skip={"seed"})
        parser.add_lightning_class_args(FederatedModule, "model", subclass_mode=True)
        parser.add_lightning_class_args(FederatedData, "data", subclass_mode=True, required=False)
        parser.set_defaults({"data": {"class_path": "fedlit.data.FederatedData"}})

    def instantiate_trainer(self, **kwargs: Any) -> Federation:
        return super().instantiate_trainer(seed=self.config[self.subcommand].seed_everything, **kwargs)

    def _run_subcommand(self, subcommand: str) -> None:
        """LightningCLI would run at once; `main` wants to know the trainer first."""

    def start(self) -> None:
        """Run the subcommand."""
        super()._run_subcommand(self.subcommand)

    def _set_seed(self) -> None:
        """As LightningCLI, but without a word; a random seed becomes part of the saved config."""
        config = self.config[self.subcommand]
        if config.seed_everything is False or config.seed_everything is True:
            # Further processes of a run inherit the seed that the first one drew.
            inherited = os.environ.get("PL_GLOBAL_SEED") if "LOCAL_RANK" in os.environ else None
            config.seed_everything = int(inherited or secrets.randbelow(2**31))
        if not 0 <= config.seed_everything < 2**32:
            raise ValueError(f"`seed_everything` must be 0 to {2**32 - 1}, got {config.seed_everything}.")
        seed_everything(config.seed_everything, workers=True, verbose=False)

    def _parse_ckpt_path(self) -> None:
        """LightningCLI would read hyper-parameters from the checkpoint; ours hold none, and are read once, checked."""


def main(args: list[str] | None = None) -> None:
    """Entry point of the `fedlit` command."""
    sys.path.insert(0, os.getcwd())  # a user's own methods, in a file where they stand
    trainer: Federation | None = None
    try:
        sys.argv[1:] = with_recipes_found(sys.argv[1:] if args is None else args)
        cli = FederatedCLI()
        trainer = cli.trainer
        cli.start()
    except (ValueError, TypeError, RuntimeError, OSError, MisconfigurationException) as error:
        if DEBUG or (trainer is not None and trainer.running):
            raise  # not the user's input: the whole story
        refuse(str(error))
    if trainer.stopped_by is not None:
        raise SystemExit(128 + trainer.stopped_by)


def refuse(message: str) -> NoReturn:
    """One line, exit code 2."""
    sys.stderr.write(f"fedlit: error: {in_full(plain(message), sys.argv[1:])}\n")
    raise SystemExit(2)


def with_recipes_found(args: list[str]) -> list[str]:
    """The arguments with every `--config NAME` replaced by its file; `last` and `best` are of the config's own run."""
    found, folder = [], None
    for before, arg in zip(["", *args], args, strict=False):
        option, equals, name = arg.partition("=")
        if before in ("-c", "--config"):
            found.append(checked_recipe(find_recipe(arg)))
            folder = Path(found[-1]).parent
        elif option == "--config" and equals:
            found.append(f"--config={checked_recipe(find_recipe(name))}")
            folder = Path(found[-1].removeprefix("--config=")).parent
        else:
            found.append(arg)
    if folder is None or not (folder / "checkpoints").is_dir():
        return found
    own = {name: str(folder / "checkpoints" / f"{name}.ckpt") for name in ("last", "best")}
    pairs = zip(["", *found], found, strict=False)
    return [own.get(arg, arg) if before == "--ckpt_path" else arg for before, arg in pairs]


def find_recipe(name: str) -> str:
    """A file where the user stands, or the recipe of that name that comes with fedlit."""
    if Path(name).is_file():
        return name
    package = Path(fedlit.__file__).parent
    folders = [folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir()]
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    recipes = [str(path.relative_to(folder)) for folder in folders for path in sorted(folder.rglob("*.yaml"))]
    near = difflib.get_close_matches(name, recipes, n=1)
    own = ", ".join(recipe for recipe in recipes if "/" not in recipe)
    hint = f"did you mean {near[0]}?" if near else f"fedlit's own are {own}, and those of papers/."
    raise ValueError(f"`--config {name}`: there is no such file here, nor such a recipe; {hint}")


class OnceLoader(yaml.SafeLoader):
    """YAML in which no key stands twice: the first one would be lost without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict:
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(None, None, f"{key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep)


def checked_recipe(path: str) -> str:
    """The path, if the file is YAML that holds options by name."""
    try:
        content = yaml.load(Path(path).read_text(encoding="utf-8"), OnceLoader)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        problem, mark = getattr(error, "problem", None) or "not a text file", getattr(error, "problem_mark", None)
        line = "" if mark is None else f" in line {mark.line + 1}"
        raise ValueError(f"`--config {path}` must be YAML, but{line}: {problem}.") from error
    if not isinstance(content, dict) or not content:
        kind = "nothing" if not content else f"a {type(content).__name__}"
        raise ValueError(f"`--config {path}` must hold options by name, such as `trainer:`, got {kind}.")
    return path
