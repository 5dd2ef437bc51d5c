"""The command line: `fedlit fit | validate | test | predict --config recipe.yaml`, by LightningCLI.

Bad input is answered by one line and exit code 2. A recipe is looked up where the user stands, then among fedlit's own.
"""

import difflib
import os
import re
import secrets
import sys
from inspect import signature
from pathlib import Path
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.fabric import seed_everything
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from fedlit import methods
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
        refuse(plain(message, sys.argv[1:]) + suggestion(message, self._names()))

    def _names(self) -> set[str]:
        parsers = [self]
        for action in self._actions:
            parsers += action.choices.values() if isinstance(action.choices, dict) else ()
        names = {action.dest for parser in parsers for action in parser._actions} | set(FederatedCLI.subcommands())
        classes = (FederatedData, *(getattr(methods, name) for name in methods.__all__))
        return names | {name for kind in classes for name in signature(kind.__init__).parameters} | set(methods.__all__)


def plain(message: str, args: list[str]) -> str:
    """jsonargparse's message without its scaffolding.

    Example:
        >>> plain("Parser key \\"trainer.devices\\": Expected a <class 'int'>. Got value: x", [])
        "`trainer.devices`: expected int, got 'x'."
        >>> plain("Option 'lr' is not accepted", ["fit", "--model.lr", "3"])
        'Option `--model.lr` is not accepted'
    """
    message = " ".join(message.split())
    if inner := re.search(r"Errors: - (.+?) - Expected an? <class 'NoneType'>", message):  # a constructor's own words
        message = message if message.startswith("Parser key") else inner[1]
    if option := re.search(r"(?:Option|Key) '([\w.]+)' is not", message):
        typed = [arg.split("=")[0] for arg in args if arg.startswith("--") and arg.split("=")[0].endswith(option[1])]
        message = message.replace(f"'{option[1]}'", f"`{typed[0] if typed else option[1]}`")
    key = re.match(r'Parser key "([\w.]+)": ', message)
    value = re.search(r"(?:Given value|Got value): (.*?)$", message)
    kinds = re.search(
        r"Subtypes: \[(.*?)\] Errors:|Expected an? (<.*?>)|(?:^|: )(Expected .*?)\.? (?:Got|Given) value", message
    )
    if key and value and kinds:
        expected = next(filter(None, kinds.groups())).removeprefix("Expected ")
        expected = expected.removeprefix("a ").replace("typing.Literal", "one of ")
        expected = re.sub(r"<class '(?:[\w.]+\.)?(\w+)'>", r"\1", expected).replace(", NoneType", "")
        return f"`{key[1]}`: expected {expected}, got {value[1]!r}."
    return message


def suggestion(message: str, known: set[str]) -> str:
    """The name that a refused one is nearest to.

    Example:
        >>> suggestion("Key 'trainer.num_round' is not expected", {"trainer.num_rounds", "trainer.devices"})
        " Did you mean 'trainer.num_rounds'?"
    """
    refused = r"(?:unrecognized arguments:|Option|Key|invalid choice:|Given value:) ['\"-]*([A-Za-z_][\w.]*)"
    for word in re.findall(refused, message):
        for name in (word, word.rpartition(".")[2]):
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.75)
            if near and name not in known:
                return f" Did you mean {near[0]!r}?"
    return ""


class SaveConfig(SaveConfigCallback):
    """Saves the config so that it starts the run anew, also when this run went on from a checkpoint."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs: Any) -> None:
        config = config.clone()
        config.pop("config", None)
        config.ckpt_path = None
        super().__init__(parser, config, overwrite=True, **kwargs)

    def setup(self, trainer: Federation, pl_module: FederatedModule, stage: str) -> None:
        if stage == "fit" and trainer.log_dir is not None:
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
            parser_kwargs={**PARSER, **{name: dict(PARSER) for name in self.subcommands()}},
            parser_class=Parser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        return {name: {"model", "datamodule"} for name in ("fit", "validate", "test", "predict")}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        # LightningCLI itself insists on a Trainer here.
        parser.add_class_arguments(Federation, "trainer", instantiate=False, sub_configs=True, skip={"seed"})
        parser.add_lightning_class_args(FederatedModule, "model", subclass_mode=True)
        parser.add_lightning_class_args(FederatedData, "data", subclass_mode=True, required=False)
        parser.set_defaults({"data": {"class_path": "fedlit.data.FederatedData"}})

    def instantiate_trainer(self, **kwargs: Any) -> Federation:
        return super().instantiate_trainer(seed=self._get(self.config, "seed_everything"), **kwargs)

    def _run_subcommand(self, subcommand: str) -> None:
        """LightningCLI would run at once; `main` wants to know the trainer first."""

    def start(self) -> None:
        """Run the subcommand."""
        super()._run_subcommand(self.subcommand)

    def _set_seed(self) -> None:
        """As LightningCLI, but without a word; a random seed becomes part of the saved config."""
        config = self.config[self.subcommand]
        if config.seed_everything is False or config.seed_everything is True:
            config.seed_everything = secrets.randbelow(2**31)
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
    sys.stderr.write(f"fedlit: error: {plain(message, sys.argv[1:])}\n")
    raise SystemExit(2)


def with_recipes_found(args: list[str]) -> list[str]:
    """The arguments with every `--config NAME` replaced by the file that it means."""
    found = list(args)
    for i, arg in enumerate(args):
        if arg in ("-c", "--config") and i + 1 < len(args):
            found[i + 1] = find_recipe(args[i + 1])
        elif arg.startswith("--config="):
            found[i] = f"--config={find_recipe(arg.removeprefix('--config='))}"
    return found


def find_recipe(name: str) -> str:
    """A file where the user stands, or the recipe of that name that comes with fedlit."""
    if Path(name).is_file():
        return name
    package = Path(__file__).parent
    folders = [folder for folder in (package / "configs", package.parent / "configs") if folder.is_dir()]
    for folder in folders:
        if (folder / name).is_file():
            return str(folder / name)
    recipes = [str(path.relative_to(folder)) for folder in folders for path in sorted(folder.rglob("*.yaml"))]
    near = difflib.get_close_matches(name, recipes, n=1)
    hint = f"did you mean {near[0]}?" if near else f"fedlit's own are {', '.join(recipes)}."
    raise ValueError(f"`--config {name}`: there is no such file here, nor such a recipe; {hint}")
