"""One-line errors for bad input, exit code 2; without torch, for what must come at once."""

import difflib
import os
import re
import sys
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, NoReturn

from fedlit.records.files import NOT_WRITTEN, is_full

DEBUG = bool(os.environ.get("FEDLIT_DEBUG"))  # show tracebacks
LONGEST_WORD = 200  # characters of what is repeated of the user's input
LONGEST_LINE = 800
BAD_INPUT = 2
REPORT = ("pandas", "scipy")


def refuse(message: str, code: int = BAD_INPUT) -> NoReturn:
    """One line, and an exit code."""
    sys.stderr.write(f"fedlit: error: {on_one_line(message)}\n")
    raise SystemExit(code)


def on_one_line(message: str) -> str:
    """The message without the middle of what is too long to be read, and without what a terminal would act on.

    Example:
        >>> on_one_line(f"got {'x' * 1000}.")[-20:]
        'xxxxxxxxxxxxxxxxxxx.'
        >>> on_one_line("got \\x1b[31m red")
        'got \\\\x1b[31m red'
    """
    words = " ".join(_abridged(word, LONGEST_WORD) for word in message.split())
    printable = "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in words)
    return _abridged(printable, LONGEST_LINE)


def _abridged(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]} ... {text[-half:]}"


def give_up(message: str, is_fit: bool) -> NoReturn:
    """One line, exit code 3: the input was good, but the run could not go on, or new clients could not join."""
    recorded = "see events.jsonl, " if is_fit else ""
    sys.stderr.write(f"fedlit: {message} ({recorded}FEDLIT_DEBUG=1 shows where)\n")
    raise SystemExit(3)


@contextmanager
def refusals() -> Iterator[None]:
    """Report bad input (a ValueError, a file that cannot be read) in one line.

    The exit code is 2, and 4 where a disk is full.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        if DEBUG:
            raise
        if isinstance(error, OSError) and is_full(error):
            refuse(f"{error.filename or 'a file'} cannot be written: {error.strerror}; make room.", NOT_WRITTEN)
        refuse(str(error))


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a slip, or nothing.

    Example:
        >>> nearest("fitt", ["fit", "test"])
        ' Did you mean fit?'
        >>> nearest("what", ["fit", "test"])
        ''
    """
    near = difflib.get_close_matches(word, list(known), n=1)
    return f" Did you mean {near[0]}?" if near else ""


class OneLineParser(ArgumentParser):
    """argparse's, with refusals in one line and no abbreviations."""

    def __init__(self, prog: str, description: str, **kwargs: Any) -> None:
        super().__init__(
            prog,
            description=description,
            formatter_class=RawDescriptionHelpFormatter,
            allow_abbrev=False,
            **kwargs,
        )

    def error(self, message: str) -> NoReturn:
        words = message.removeprefix("unrecognized arguments: ").split()
        if len(words) == len(message.split()):
            refuse(f"{self.prog}: {message}.")
        option = words[0].partition("=")[0]
        if not option.startswith("-"):
            refuse(f"{self.prog}: {option!r} is one argument too many.")
        names = [*re.findall(r"--([\w-]+)", self.format_usage()), "help"]
        refuse(f"`{option}` is not an option of {self.prog}.{nearest(option.lstrip('-'), names)}")


def need_report(what: str) -> None:
    """Refuse where the extra `report` is not installed."""
    missing = [name for name in REPORT if find_spec(name) is None]
    if missing:
        refuse(f"{what} needs {', '.join(missing)}: pip install 'fedlit[report]'.")
