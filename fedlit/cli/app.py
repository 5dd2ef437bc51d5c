"""The command line: `fedlit fit | validate | test | predict | adapt --config recipe.yaml`, by LightningCLI.

Bad input ends in one line and exit code 2, a round without enough usable clients in one and exit code 3.
"""

import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from inspect import signature
from pkgutil import resolve_name
from typing import Any, NoReturn

from jsonargparse import Namespace
from lightning.fabric import seed_everything
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import fedlit.server_optimizers  # noqa: F401  # so that `--trainer.server_optimizer FedAdam` is known by its name
from fedlit.cli.command import SUBCOMMANDS, look_here_last
from fedlit.cli.messages import in_one_line, with_full_names, with_variables
from fedlit.cli.parser import Parser, link_num_classes, with_functions
from fedlit.cli.recipes import (
    given_options,
    note_configs,
    of_own_run,
    with_recipes_found,
    written_options,
)
from fedlit.cli.refusal import DEBUG, refuse
from fedlit.data import FederatedData
from fedlit.engine import liveness
from fedlit.engine.aggregation import RuleFailed
from fedlit.engine.liveness import ProcessLost
from fedlit.engine.plan import UsageError
from fedlit.engine.scheduling import TooFewClients
from fedlit.federation import Federation
from fedlit.methods import FederatedModule
from fedlit.notices import Notice
from fedlit.records.files import NOT_WRITTEN, NotWritten

PLAIN = (ValueError, TypeError, RuntimeError, OSError, MisconfigurationException)  # shown by their text alone
PARSER = {"allow_abbrev": False, "default_env": False}  # the environment is read as if it were typed, after recipes
ENVIRONMENT = (
    "An option may also be a variable of the environment: FEDLIT_FIT__TRAINER__NUM_ROUNDS=3 is --trainer.num_rounds 3. "
    "What is typed wins over the environment, which wins over a recipe, which wins over defaults."
)


class SaveConfig(SaveConfigCallback):
    """Saves the config so that it starts the run anew, also when this run went on from a checkpoint."""

    def __init__(self, parser: LightningArgumentParser, config: Namespace, **kwargs: Any) -> None:
        config = config.clone()
        config.pop("config", None)
        config.ckpt_path = None
        super().__init__(parser, config, overwrite=True, **kwargs)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # a Federation, its method
        if stage == "fit" and trainer.log_dir is not None and trainer.has_rounds_left:
            if trainer.state.round:  # the config of the rounds before stays as it is
                self.config_filename = f"config_from_round_{trainer.state.round + 1}.yaml"
            super().setup(trainer, pl_module, stage)


class FederatedCLI(LightningCLI):
    """LightningCLI with a Federation for a Trainer."""

    trainer: Federation  # type: ignore[assignment]  # Lightning says Trainer

    def __init__(self) -> None:
        super().__init__(
            FederatedModule,
            FederatedData,
            save_config_callback=SaveConfig,
            trainer_class=Federation,  # type: ignore[arg-type]  # Lightning says Trainer
            seed_everything_default=0,
            parser_kwargs={
                **PARSER,
                "prog": "fedlit",
                "description": "Federated learning for clients that differ.",
                **{name: {**PARSER, "epilog": ENVIRONMENT} for name in self.subcommands()},
            },
            parser_class=Parser,
            subclass_mode_model=True,
            subclass_mode_data=True,
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        names = [name for name in sys.argv[1:2] if name in SUBCOMMANDS]
        if not names:
            names = [*SUBCOMMANDS]  # else only the parser of the one: those of the others take a moment
        return {name: {"model", "datamodule"} for name in names}

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        # LightningCLI itself insists on a Trainer here.
        given_elsewhere = {"seed"}
        parser.add_class_arguments(Federation, "trainer", instantiate=False, sub_configs=True, skip=given_elsewhere)
        parser.add_lightning_class_args(FederatedModule, "model", subclass_mode=True)
        parser.add_lightning_class_args(FederatedData, "data", subclass_mode=True, required=False)
        parser.set_defaults({"data": {"class_path": "fedlit.data.FederatedData"}})
        parser.complete = partial(link_num_classes, args=sys.argv[1:])  # type: ignore[attr-defined]  # a Parser

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parser.parse_args(with_functions(sys.argv[1:]))
        self.options = self.config[self.config.subcommand]
        link_num_classes(self.options, sys.argv[1:])

    def before_instantiate_classes(self) -> None:
        """`last` of a recipe means what it means when it is typed."""
        if self.options.get("ckpt_path"):
            self.options.ckpt_path = of_own_run(str(self.options.ckpt_path), sys.argv[1:])

    def instantiate_classes(self) -> None:
        with refused_in_one_line(options=self.options):
            super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        return super().instantiate_trainer(seed=self.config[self.subcommand].seed_everything, **kwargs)

    def _run_subcommand(self, subcommand: str) -> None:
        """LightningCLI would run at once; `main` wants to know the trainer first."""

    def start(self) -> None:
        """Run the subcommand."""
        super()._run_subcommand(str(self.subcommand))

    def _set_seed(self) -> None:
        """As LightningCLI, but silently; a random seed becomes part of the saved config."""
        config = self.config[self.subcommand]
        if isinstance(config.seed_everything, bool):
            config.seed_everything = _random_seed()
        if not 0 <= config.seed_everything < 2**32:
            raise ValueError(f"`seed_everything` must be 0 to {2**32 - 1}, got {config.seed_everything}.")
        seed_everything(config.seed_everything, workers=True, verbose=False)

    def _parse_ckpt_path(self) -> None:
        """LightningCLI would read hyper-parameters from the checkpoint; ours hold none, and are read once, checked."""


class DataCLI(FederatedCLI):
    """Builds the data of a recipe alone; method and trainer are read only."""

    def add_core_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_class_arguments(Federation, "trainer", instantiate=False, sub_configs=True, skip={"seed"})
        parser.add_subclass_arguments(FederatedModule, "model", required=False, instantiate=False)
        parser.add_lightning_class_args(FederatedData, "data", subclass_mode=True, required=False)
        parser.set_defaults({"data": {"class_path": "fedlit.data.FederatedData"}})

    def instantiate_classes(self) -> None:
        config = self.config.clone()
        chosen = config[config.subcommand]
        for name in [name for name in vars(chosen) if name != "data"]:
            chosen.pop(name)
        with refused_in_one_line(options=self.options):
            self.config_init = self.parser.instantiate_classes(config)
        self.datamodule = self.config_init[config.subcommand].data


def _random_seed() -> int:
    """A new seed; further processes of a run inherit the one that the first drew."""
    inherited = os.environ.get("PL_GLOBAL_SEED")
    if "LOCAL_RANK" in os.environ and inherited:
        return int(inherited)
    return secrets.randbelow(2**31)


def main(args: list[str] | None = None) -> None:
    """Entry point of the `fedlit` command."""
    look_here_last()
    if args is not None:
        sys.argv[1:] = args
    with notices_in_one_line():
        federation = _run()
    if federation.stopped_by is not None:
        raise SystemExit(128 + federation.stopped_by)


def _run() -> Federation:
    """The federation after the command that was given."""
    with refused_in_one_line():
        sys.argv[1:] = with_recipes_found(sys.argv[1:])
        cli = FederatedCLI()
        warn_of_inherited(sys.argv[1:], cli.options.as_dict())
    with refused_in_one_line(lambda: cli.trainer.running, cli.options):
        cli.start()
    note_configs(sys.argv[1:])
    return cli.trainer


@contextmanager
def refused_in_one_line(is_running: Callable[[], bool] = bool, options: Namespace | None = None) -> Iterator[None]:
    """Report an error in one line, as bad input, unless rounds are running: then with its traceback.

    Args:
        is_running: Whether rounds are running.
        options: Of the command, by which those that an error names get their full names.
    """
    try:
        yield
    except Exception as error:
        if DEBUG:
            raise
        _report(error, is_running(), {} if options is None else options.as_dict())


def _report(error: Exception, is_running: bool, options: Mapping[str, Any]) -> NoReturn:
    message = str(error)
    if isinstance(error, ProcessLost):
        if error.reports:
            sys.stderr.write(f"fedlit: error: {message}\n")
        raise SystemExit(liveness.LOST) from error
    if isinstance(error, NotWritten):
        refuse(message, NOT_WRITTEN)
    if isinstance(error, TooFewClients | RuleFailed):  # the input was good, but the run could not go on
        recorded = "see events.jsonl, " if is_running else ""
        sys.stderr.write(f"fedlit: {message.splitlines()[0]} ({recorded}FEDLIT_DEBUG=1 shows where)\n")
        raise SystemExit(3)
    alive = liveness.current()
    if is_running and not isinstance(error, UsageError):  # not the user's input: the whole story, once
        if alive is not None and not alive.is_first(f"raised {error!r}"):
            raise SystemExit(1)
        raise error
    if alive is not None and not alive.refuse():  # another process has reported it
        raise SystemExit(liveness.REFUSED)
    if not isinstance(error, (*PLAIN, UsageError)):
        message = f"{type(error).__name__}: {message} (FEDLIT_DEBUG=1 shows where)"
    args = sys.argv[1:]
    refuse(with_variables(with_full_names(in_one_line(message), options, args), args))


def warn_of_inherited(args: list[str], options: Mapping[str, Any]) -> None:
    """A notice for each argument that was given to a class whose place another one has taken.

    That a method inherits a recipe's network and optimiser is meant.

    Args:
        args: What was typed, with recipes found.
        options: What came of it.
    """
    classes: dict[str, str] = {}
    given: dict[tuple[str, str], tuple[Any, str]] = {}
    for option, value in given_options(args):
        parent, _, name = option.rpartition(".")
        kind = value.get("class_path") if isinstance(value, dict) else value
        if name == "class_path":
            classes[parent] = _short(value)
        elif isinstance(kind, str) and (isinstance(value, dict) or option in classes):
            classes[option] = _short(kind)
        elif parent in classes:
            given[parent, name] = value, classes[parent]
    final = dict(written_options(options))
    for (option, name), (value, before) in given.items():
        kind = final.get(f"{option}.class_path")
        now = final.get(f"{option}.{name}")
        now = [*now] if isinstance(now, tuple) else now
        is_meant = option == "data" or (option == "model" and isinstance(value, dict | list))
        is_meant = is_meant or kind is None or _short(kind) == before
        if not is_meant and now is not None and now == value and now != _default(str(kind), name):
            notice = (
                f"`{option}` is {_short(kind)} and inherits `{name}`: {value!r}, which was given to {before}; "
                f"`--{option}.{name}` changes it."
            )
            warnings.warn(notice, Notice, stacklevel=2)


def _short(kind: Any) -> str:
    return str(kind).rpartition(".")[2]


def _default(class_path: str, name: str) -> Any:
    parameter = signature(resolve_name(class_path)).parameters.get(name)
    return None if parameter is None else parameter.default


@contextmanager
def notices_in_one_line() -> Iterator[None]:
    """Show each notice once, as a line without file and number; other warnings as usual, in one process of several."""
    shown: set[str] = set()

    def show(message: Warning | str, category: type[Warning], *place: Any) -> None:
        is_notice = issubclass(category, Notice)
        if not is_notice and _is_ours_to_show(f"{category.__name__} {message}"):
            as_usual(message, category, *place)
        elif is_notice and str(message) not in shown:
            shown.add(str(message))
            _say(str(message))

    with warnings.catch_warnings():
        as_usual = warnings.showwarning
        warnings.showwarning = show  # type: ignore[assignment]  # the other arguments are passed on
        yield


def _is_ours_to_show(text: str) -> bool:
    """Whether this process shows a warning: one of all; before they are connected, the first."""
    alive = liveness.current()
    if alive is None:
        return getattr(rank_zero_only, "rank", 0) == 0
    return alive.is_first(f"warned {text}")


@rank_zero_only
def _say(notice: str) -> None:
    sys.stderr.write(f"fedlit: note: {notice}\n")
