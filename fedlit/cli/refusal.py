"""One-line errors for bad input, exit code 2; imports nothing that takes long."""

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
    """The message without the middle of what is too long, and without control characters.

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
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]} ... {text[-half:]}"


@contextmanager
def refusals() -> Iterator[None]:
    """Report bad input (a ValueError, a file that cannot be read) in one line; exit code 2, or 4 for a full disk."""
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
    """argparse's, with one-line errors and no abbreviations."""

    def __init__(self, prog: str, description: str, **kwargs: Any) -> None:
        kwargs = {"formatter_class": RawDescriptionHelpFormatter, "allow_abbrev": False, **kwargs}
        super().__init__(prog, description=description, **kwargs)

    def error(self, message: str) -> NoReturn:
        unknown = re.match(r"unrecognized arguments: (--?([\w-]+))", message)
        if unknown is None:
            refuse(f"{self.prog}: {message}.")
        names = [*re.findall(r"--([\w-]+)", self.format_usage()), "help"]
        refuse(f"`{unknown[1]}` is not an option of {self.prog}.{nearest(unknown[2], names)}")


def need_report(what: str) -> None:
    """Refuse where the extra `report` is not installed."""
    missing = [name for name in REPORT if find_spec(name) is None]
    if missing:
        refuse(f"{what} needs {', '.join(missing)}: pip install 'fedlit[report]'.")
