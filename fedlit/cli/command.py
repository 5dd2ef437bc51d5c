"""The `fedlit` command. Its help and version are immediate; what the subcommands need takes seconds to import.

A closed pipe, as after `| head -1`, or a closed stream (`2>&-`) ends no run.
"""

import errno
import gc
import io
import os
import select
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from importlib import import_module
from importlib.metadata import version
from platform import python_version
from signal import SIGINT
from types import ModuleType
from typing import Any, TextIO

import fedlit
from fedlit.cli.recipes import with_recipes_found
from fedlit.cli.refusal import DEBUG, nearest, refusals, refuse

SUBCOMMANDS = {  # of a federation, by LightningCLI
    "fit": "Train a method over its rounds.",
    "validate": "Evaluate every client on its own validation samples, and the global model on the test set too.",
    "test": "Evaluate the global model and every client's own on the pooled test set.",
    "predict": "Predict the test set or own images, by the global model or a client's own; writes predictions_*.csv.",
    "adapt": "Let unseen clients join: each trains locally from the server's state; writes adapt.csv and adapt.png.",
}
TOOLS = {  # each is `main` of the module of that name (with `_` for `-`) beside this one, imported when it is called
    "compare": "Run a study, or recipes side by side over seeds: tables, figures and a page.",
    "export": "Write a network of a checkpoint as a file, and check that it gives the same outputs.",
    "export-flower": "Write a recipe as a Flower app, for clients on hosts of their own.",
    "methods": "List the methods, or describe one: paper, what travels, what stays, stages, recipe, invariant.",
    "partition": "Show the partition: a table of clients and classes, and a picture if asked for.",
    "report": "Write the page of a run: curves, who holds what, what was sent, events, configuration.",
    "recipes": "List the recipes that come with fedlit, or print one.",
}
EXAMPLES = """\
examples:
  fedlit fit --config fml_fashion.yaml                      a recipe that comes with fedlit, on embedded data
  fedlit fit --config fml_fashion.yaml --model.alpha 0.7    with an option changed
  fedlit fit --config my.yaml --ckpt_path last              resume the newest run
  fedlit fit --config my.yaml --ckpt_path auto              resume if there is a checkpoint, else begin
  fedlit fit --config fml_fashion.yaml --print_config       all options of a recipe, for a file of your own
  fedlit fit --help                                         every option
"""
STREAMS = {"stdin": 0, "stdout": 1, "stderr": 2}


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


def main() -> None:
    """Entry point."""
    keep_streams()
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # torch would print C++ frames where a rank is lost
    try:
        _run(sys.argv[1:])
    except KeyboardInterrupt:  # in a fit, rounds end in good order
        if DEBUG:
            raise
        if os.environ.get("LOCAL_RANK", "0") == "0":  # one message for all processes
            sys.stderr.write("fedlit: stopped by SIGINT\n")
        raise SystemExit(128 + SIGINT) from None
    sys.stdout.flush()
    lost = getattr(getattr(getattr(sys.stdout, "buffer", None), "raw", None), "lost", None)
    if lost is not None and sys.argv[1:2] != ["fit"]:  # of a fit, the records are what counts
        refuse(f"standard output is incomplete: {lost.strerror}.")


def _run(args: list[str]) -> None:
    command = args[0] if args else "--help"
    names = [*SUBCOMMANDS, *TOOLS]
    if args in ([], ["-h"], ["--help"]):
        help_parser().print_help()
    elif args == ["--version"]:
        parts = [f"{name} {version(name)}" for name in ("torch", "lightning")]
        print(f"fedlit {fedlit.__version__} ({', '.join(parts)}, Python {python_version()})")
    elif command in TOOLS:
        look_here_last()
        _imported(f"fedlit.cli.{command.replace('-', '_')}").main(args[1:])
    elif command in SUBCOMMANDS:
        with refusals():
            with_recipes_found(args)  # a recipe that is missing or no YAML is refused before seconds of imports
        _imported("fedlit.cli.app").main()
    elif command.startswith("-"):
        refuse("options come after the command: fedlit fit --config ...")
    else:
        hint = nearest(command, names) or f" There are {', '.join(names)}."
        refuse(f"{command!r} is no command.{hint}")


def look_here_last() -> None:
    """Add the current folder, which may have modules of the user's, to the end of `sys.path`.

    A `pandas.py` there does not replace the installed pandas.
    """
    sys.path.append(os.getcwd())


def _imported(name: str) -> ModuleType:
    """A module, with all that it imports left out of the garbage collector's walks, now and later: it stays anyway."""
    gc.disable()
    module = import_module(name)
    gc.freeze()
    gc.enable()
    return module


class PipeSafeWriter(io.FileIO):
    """A file descriptor that discards what is written once writing has failed.

    Attributes:
        lost: The error, unless a reader closed the pipe.
    """

    lost: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            written = super().write(data)
        except OSError as error:
            if error.errno != errno.EPIPE:
                self.lost = error
            _to_nowhere(self.fileno(), os.O_WRONLY)
            return len(data)
        if written is None:  # a pipe that does not block, and is full
            select.select([], [self.fileno()], [])
            return self.write(data)
        return written


def keep_streams() -> None:
    """Let standard output and error discard text instead of failing."""
    for name, descriptor in STREAMS.items():
        try:
            os.fstat(descriptor)
        except OSError:  # closed: the next file that is opened would be standard output, and be written to by prints
            _to_nowhere(descriptor, os.O_RDONLY if name == "stdin" else os.O_WRONLY)
        stream = getattr(sys, name)
        if name != "stdin" and stream is getattr(sys, f"__{name}__"):  # else it was redirected in Python
            setattr(sys, name, _pipe_safe(descriptor, stream))


def _pipe_safe(descriptor: int, stream: TextIO | None) -> TextIO:
    """A stream in place of the one that Python has made, if any."""
    raw = io.BufferedWriter(PipeSafeWriter(descriptor, "w", closefd=False))
    if not isinstance(stream, io.TextIOWrapper):  # it was closed
        return io.TextIOWrapper(raw, encoding="utf-8", errors="backslashreplace", line_buffering=True)
    stream.flush()
    # `write_through` (PYTHONUNBUFFERED) passes the text layer only: lines would wait in the buffer below it.
    is_prompt = descriptor == STREAMS["stderr"] or stream.line_buffering or stream.write_through
    return io.TextIOWrapper(raw, stream.encoding, "backslashreplace", line_buffering=is_prompt)


def _to_nowhere(descriptor: int, flags: int) -> None:
    """Redirect a descriptor to the null device."""
    null = os.open(os.devnull, flags)
    if null != descriptor:
        os.dup2(null, descriptor)
        os.close(null)
