"""What pages print is what runs: blocks of a page by language, and a page followed from its first block to its last."""

import importlib
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from fedlit.cli import command

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FILE = re.compile(r"# ([\w.-]+\.(?:py|yaml))\n")


def blocks(page: str, language: str) -> list[str]:
    """Blocks of a page of the repository, in their order."""
    return [text for kind, text in BLOCK.findall((ROOT / page).read_text()) if kind == language]


def run(block: str, page: str, names: dict) -> None:
    """A block of Python, as printed, with the names of those before it."""
    exec(compile(block, page, "exec"), names)


def follow(page: str, monkeypatch, apart: bool = False) -> list[str]:
    """Do what a page says, in the folder where one stands; what was run or written, in a word each.

    A block that begins with a comment of a file's name is that file; Python is run; commands are fedlit's or pytest's;
    a `text` is what the block before it printed. Commands that start processes want one of their own (`apart`).
    """
    reader = Reader(page, monkeypatch, apart)
    for kind, text in BLOCK.findall((ROOT / page).read_text()):
        reader.take(kind, text)
    return reader.done


class Reader:
    """Somebody who follows a page."""

    def __init__(self, page: str, monkeypatch, apart: bool) -> None:
        self.page = page
        self.monkeypatch = monkeypatch
        self.apart = apart
        self.names: dict = {"__name__": "followed"}
        self.printed = ""
        self.done: list[str] = []
        monkeypatch.setattr("sys.path", [str(Path.cwd()), *sys.path])

    def take(self, kind: str, text: str) -> None:
        file = FILE.match(text)
        if kind == "text":
            assert self.printed == text
        elif file is not None:
            self.write(file[1], text)
        elif kind == "python":
            self.printed = self.saying(lambda: run(text, self.page, self.names))
            self.done.append("python")
        elif kind == "bash":
            for line in text.splitlines():
                self.call(shlex.split(line, comments=True))

    def write(self, name: str, text: str) -> None:
        Path(name).write_text(text)
        self.monkeypatch.delitem(sys.modules, Path(name).stem, raising=False)
        importlib.invalidate_caches()
        self.done.append(name)

    def call(self, words: list[str]) -> None:
        if not words:
            return
        if words[0] == "pytest":
            self.tests(words[1])
        elif self.apart:
            assert words[0] == "fedlit", words
            subprocess.run([sys.executable, "-m", *words], check=True, stdout=subprocess.DEVNULL)
        else:
            assert words[0] == "fedlit", words
            self.monkeypatch.setattr("sys.argv", [*words])  # which the command may change
            self.printed = self.saying(command.main)
        self.done.append(" ".join(words[:2]))

    def tests(self, file: str) -> None:
        """The tests of a file, one after the other."""
        found = vars(importlib.import_module(Path(file).stem))
        tests = [value for name, value in found.items() if name.startswith("test_")]
        assert tests
        for test in tests:
            test()

    def saying(self, act) -> str:
        out = StringIO()
        code: object = 0
        with redirect_stdout(out):
            try:
                act()
            except SystemExit as end:
                code = end.code or 0
        assert code == 0, f"{self.page} after {self.done}"
        return out.getvalue()
