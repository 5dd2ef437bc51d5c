"""The `fedlit` command. Its help and version come at once; what the subcommands need takes seconds to import."""

import gc
import os
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module
from importlib.metadata import version
from platform import python_version
from signal import SIGINT
from types import ModuleType

import fedlit
from fedlit.cli.recipes import with_recipes_found
from fedlit.cli.refusal import DEBUG, nearest, refusals, refuse
from fedlit.cli.streams import keep_streams, lost_output

SUBCOMMANDS = {  # of a federation, by LightningCLI
    "fit": "Train a method over its rounds.",
    "validate": "Evaluate every client on its own validation samples, and the global model on the test set too.",
    "test": "Evaluate the global model and every client's own on the pooled test set.",
    "predict": "Predict the test set or own images, by the global model or a client's own; writes predictions_*.csv.",
    "adapt": "Let unseen clients join: each trains at home from what the server holds; writes adapt.csv and adapt.png.",
}
TOOLS = {  # each is `main` of the module of that name (with `_` for `-`) beside this one, imported when it is called
    "compare": "Run a study, or recipes side by side over seeds: tables, figures and a page.",
    "export": "Write a network of a checkpoint as a file, and check that it gives the same outputs.",
    "export-flower": "Write a recipe as a Flower app, for clients on hosts of their own.",
    "methods": "List the methods, or describe one: paper, what travels, what stays, stages, recipe, invariant.",
    "partition": "Show who would hold what: a table of clients and classes, and a picture if asked for.",
    "report": "Write the page of a run: curves, who holds what, what was sent, events, configuration.",
    "recipes": "List the recipes that come with fedlit, or print one.",
}
RECIPES_READ_BY = (*SUBCOMMANDS, "export", "partition")  # after `--config`
EXAMPLES = """\
examples:
  fedlit fit --config fml_fashion.yaml                      a recipe that comes with fedlit, on embedded data
  fedlit fit --config fml_fashion.yaml --model.alpha 0.7    with an option changed
  fedlit fit --config my.yaml --ckpt_path last              go on with the newest run
  fedlit fit --config my.yaml --ckpt_path auto              go on if there is something, else begin
  fedlit fit --config fml_fashion.yaml --print_config       all options of a recipe, for a file of your own
  fedlit fit --help                                         every option
"""


def help_parser() -> ArgumentParser:
    """What `fedlit --help` prints."""
    parser = ArgumentParser(
        "fedlit",
        description="Federated learning for clients that differ.",
        epilog=EXAMPLES,
        formatter_class=RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="store_true", help="Versions of fedlit, torch, lightning and Python.")
    names = {**SUBCOMMANDS, **TOOLS}
    commands = parser.add_subparsers(title="subcommands", metavar="{" + ",".join(names) + "}")
    for name, description in names.items():
        commands.add_parser(name, help=description)
    return parser


def versions() -> str:
    """What `fedlit --version` prints: of installed packages, not of imported ones."""
    parts = [f"{name} {version(name)}" for name in ("torch", "lightning")]
    return f"fedlit {fedlit.__version__} ({', '.join(parts)}, Python {python_version()})"


def main() -> None:
    """Entry point."""
    keep_streams()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch would print C++ frames where a rank is lost
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:  # in a fit, rounds end in good order
        if DEBUG:
            raise
        if os.environ.get("LOCAL_RANK", "0") == "0":  # the first process says it for all
            sys.stderr.write("fedlit: stopped by SIGINT\n")
        raise SystemExit(128 + SIGINT) from None
    lost = lost_output()
    if lost is not None and sys.argv[1:2] != ["fit"]:  # of a fit, the records are what counts
        refuse(f"not all could be written: {lost.strerror}.")


def _run(args: list[str]) -> None:
    if args in ([], ["-h"], ["--help"]):
        help_parser().print_help()
        return
    if args == ["--version"]:
        print(versions())
        return
    if args[0] in RECIPES_READ_BY:
        with refusals():
            with_recipes_found(args)  # one that is missing or no YAML is told before seconds of imports
    if args[0] in TOOLS:
        look_here_last()
        _imported(f"fedlit.cli.{args[0].replace('-', '_')}").main(args[1:])
    elif args[0] in SUBCOMMANDS or args[0].startswith("-"):
        _imported("fedlit.cli.app").main()
    else:
        names = [*SUBCOMMANDS, *TOOLS]
        hint = nearest(args[0], names) or f" There are {', '.join(names)}."
        refuse(f"{args[0]!r} is no command.{hint}")


def look_here_last() -> None:
    """Have modules looked for in the current folder, too, where a user's own may stand: after those installed.

    A `pandas.py` that happens to stand there is not taken for pandas.
    """
    sys.path.append(os.getcwd())


def _imported(name: str) -> ModuleType:
    """A module, with all that it imports left out of the garbage collector's walks, now and later: it stays anyway."""
    gc.disable()
    module = import_module(name)
    gc.freeze()
    gc.enable()
    return module
