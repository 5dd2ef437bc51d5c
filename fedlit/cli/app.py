"""The command line: `fedlit fit | validate | test | predict | adapt --config recipe.yaml`, by LightningCLI.

Bad input is answered by one line and exit code 2, a round without enough usable clients by one and exit code 3.
"""

import os
import secrets
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from inspect import signature
from typing import Any, NoReturn, TextIO

from jsonargparse import Namespace
from lightning.fabric import seed_everything
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException

import fedlit.server_optimizers  # noqa: F401  # so that `--trainer.server_optimizer FedAdam` is known by its name
from fedlit.cli import refusal
from fedlit.cli.command import SUBCOMMANDS, look_here_last
from fedlit.cli.help import ENVIRONMENT, print_partitions
from fedlit.cli.inherited import warn_of_inherited
from fedlit.cli.messages import refuse
from fedlit.cli.method_class import method_of, with_functions
from fedlit.cli.parser import Parser, link_num_classes
from fedlit.cli.recipes import (
    note_configs,
    of_own_run,
    recipe_content,
    recipe_files,
    with_recipes_found,
    written_options,
)
from fedlit.cli.refusal import DEBUG, give_up
from fedlit.cli.values import environment_options, parsed, typed_values
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
TAKES_THE_PLACE: dict[str, dict[str, str | None]] = {  # of what, and the value by which that does not hold
    "trainer.local_epochs": {"trainer.local_steps": None},
    "trainer.local_steps": {"trainer.local_epochs": None},
    "data.dataset": {"data.train_dataset": None, "data.test_dataset": None},
    "data.train_dataset": {"data.dataset": "fashion_sample"},
    "model.network": {"model.personal": None, "model.meme": None},
}


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
        self.config = parser.parse_args(with_typed_first(with_functions(sys.argv[1:])))
        link_num_classes(self.config[self.config.subcommand], sys.argv[1:])

    def before_instantiate_classes(self) -> None:
        """`last` of a recipe means what it means when it is typed."""
        config = self.config[self.subcommand]
        if config.get("ckpt_path"):
            config.ckpt_path = of_own_run(str(config.ckpt_path), sys.argv[1:])

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        return super().instantiate_trainer(seed=self.config[self.subcommand].seed_everything, **kwargs)

    def _run_subcommand(self, subcommand: str) -> None:
        """LightningCLI would run at once; `main` wants to know the trainer first."""

    def start(self) -> None:
        """Run the subcommand."""
        super()._run_subcommand(str(self.subcommand))

    def _set_seed(self) -> None:
        """As LightningCLI, but without a word; a random seed becomes part of the saved config."""
        config = self.config[self.subcommand]
        if isinstance(config.seed_everything, bool):
            config.seed_everything = _random_seed()
        if not 0 <= config.seed_everything < 2**32:
            raise ValueError(f"`seed_everything` must be 0 to {2**32 - 1}, got {config.seed_everything}.")
        seed_everything(config.seed_everything, workers=True, verbose=False)

    def _parse_ckpt_path(self) -> None:
        """LightningCLI would read hyper-parameters from the checkpoint; ours hold none, and are read once, checked."""


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
    print_partitions(sys.argv[1:])
    with notices_in_one_line():
        federation = _run()
    if federation.stopped_by is not None:
        raise SystemExit(128 + federation.stopped_by)


def _run() -> Federation:
    """The federation after the command that was given."""
    with refused_in_one_line():
        sys.argv[1:] = with_recipes_found(sys.argv[1:])
        cli = FederatedCLI()
        warn_of_inherited(sys.argv[1:], cli.config[cli.subcommand].as_dict())
    with refused_in_one_line(lambda: cli.trainer.running):
        cli.start()
    note_configs(sys.argv[1:])
    return cli.trainer


@contextmanager
def refused_in_one_line(is_running: Callable[[], bool] = bool) -> Iterator[None]:
    """Report an error in one line, as bad input, unless rounds are running: then with its traceback."""
    try:
        yield
    except UsageError as error:
        if DEBUG:
            raise
        _refuse(str(error))
    except ProcessLost as error:
        if DEBUG:
            raise
        if error.reports:
            sys.stderr.write(f"fedlit: error: {error}\n")
        raise SystemExit(liveness.LOST) from error
    except NotWritten as error:
        if DEBUG:
            raise
        refusal.refuse(str(error), NOT_WRITTEN)
    except (TooFewClients, RuleFailed) as error:
        if DEBUG:
            raise
        give_up(str(error).partition("\n")[0], is_fit=is_running())
    except Exception as error:
        if DEBUG:
            raise
        if is_running():
            _raise_once(error)  # not the user's input: the whole story
        message = str(error)
        if not isinstance(error, PLAIN):
            message = f"{type(error).__name__}: {error} (FEDLIT_DEBUG=1 shows where)"
        _refuse(message)


def _refuse(why: str) -> NoReturn:
    """One line, exit code 2: once, however many processes have found the same."""
    alive = liveness.current()
    if alive is not None and not alive.refuse():
        raise SystemExit(liveness.REFUSED)
    refuse(why)


def _raise_once(error: Exception) -> NoReturn:
    alive = liveness.current()
    if alive is not None and not alive.is_first(f"raised {error!r}"):
        raise SystemExit(1)
    raise error


def with_typed_first(args: list[str]) -> list[str]:
    """The arguments, and further ones that reset options of recipes which exclude a typed one; a notice names each.

    Options of the environment reset those of recipes likewise. Two that are typed, two of the environment and two of
    recipes are refused later.
    """
    variables = environment_options(args[0]) if args else []
    words = [f"--{variable.option}={variable.value}" for variable in variables]  # as they stand among the arguments
    typed = {option: parsed(value) for option, value in typed_values(arg for arg in args if arg not in words) if value}
    from_environment = {v.option: parsed(v.value) for v in variables if v.option not in typed}
    names = {variable.option: variable.name for variable in variables}
    taken_back: list[str] = []
    for option, others in TAKES_THE_PLACE.items():
        given = typed if typed.get(option) is not None else from_environment
        if given.get(option) is None or others.keys() & {*given, *typed}:
            continue
        found = {other: _set(other, args) for other in others if _is_option(other, args)}
        if given is typed:
            found |= {other: (names[other], from_environment[other]) for other in found if other in from_environment}
        in_its_way = [other for other, (_, value) in found.items() if value not in (None, others[other])]
        if not found or len(in_its_way) < len(found):
            continue
        winner = f"--{option}" if given is typed else names[option]
        for other, (place, value) in found.items():
            notice = f"`{winner}` takes the place of `{other}`, which is {_short(value)} in {place}."
            warnings.warn(notice, Notice, stacklevel=2)
            taken_back += [f"--{other}", others[other] or "null"]
    return [*args, *taken_back]


def _set(option: str, args: list[str]) -> tuple[str, Any]:
    """The last recipe that sets an option, and to what; else None."""
    for recipe in reversed(recipe_files(args)):
        written = dict(written_options(recipe_content(recipe)))
        if option in written:
            return recipe, written[option]
    return "", None


def _is_option(option: str, args: list[str]) -> bool:
    """Whether there is such an option: methods differ in theirs."""
    group, _, name = option.partition(".")
    method = method_of(args)
    return group != "model" or (method is not None and name in signature(method).parameters)


def _short(value: Any) -> str:
    """A class by its name."""
    if isinstance(value, dict):
        value = value.get("class_path", value)
    return str(value)


@contextmanager
def notices_in_one_line() -> Iterator[None]:
    """Show each notice once, as a line without file and number; other warnings look as ever."""
    shown: set[str] = set()

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if not issubclass(category, Notice):
            if _is_ours_to_show(warnings.formatwarning(message, category, filename, lineno, line)):
                as_ever(message, category, filename, lineno, file, line)
        elif str(message) not in shown:
            shown.add(str(message))
            _say(str(message))

    with warnings.catch_warnings():
        as_ever = warnings.showwarning
        warnings.showwarning = show
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
