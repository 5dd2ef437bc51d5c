"""What a page is made of beside its runs: docs/papers/src/PAPER.yaml, read and checked."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from fedlit.studies.options import check_keys, read_mapping

Kind = Literal["claim", "control", "bound"]


@dataclass(frozen=True)
class RunSet:
    """A study, as it was called.

    Attributes:
        name: Of the folder below docs/papers/runs; without one, it was not run yet.
        study: As `fedlit compare` takes it.
        options: What else was typed.
        size: How it is smaller than the paper's.
    """

    name: str
    study: str
    options: str
    size: str

    @property
    def command(self) -> str:
        """As it is typed."""
        return f"fedlit compare {self.study} {self.options}".rstrip()

    def command_of(self, row: str, column: str) -> str:
        """The same for one cell and its first seed."""
        words = [*self.options_of_all, "--only", row, column, "--seeds", "1"]
        return shlex.join(["fedlit", "compare", self.study, *words])

    @property
    def options_of_all(self) -> list[str]:
        """What else was typed, but for which cells."""
        kept = []
        is_pattern = False
        for word in shlex.split(self.options):
            is_pattern = word == "--only" or (is_pattern and not word.startswith("--"))
            if not is_pattern:
                kept.append(word)
        return kept


@dataclass(frozen=True)
class Tuning(RunSet):
    """A study that picked learning rates.

    Attributes:
        tunes: The study that has them.
    """

    tunes: str


@dataclass(frozen=True)
class Question:
    """Is a row ahead of another?

    Attributes:
        ask: In words.
        brief: The same as a claim, in a few words.
        kind: A claim of the paper's; a control; or a bound, which is shown and counts for nothing.
        row: Of the study.
        over: The row that it should be ahead of.
        columns: Where.
        least: The smallest gain that matters, in the unit of the table: an interval below it disagrees.
    """

    ask: str
    brief: str
    kind: Kind
    row: str
    over: str
    columns: tuple[str, ...]
    least: float


@dataclass(frozen=True)
class Table:
    """Rows that measure the same thing.

    Attributes:
        title: Of the table.
        study: Whose rows and columns they are.
        rows: The first is what others are compared with.
        columns: Of those that were run, these.
    """

    title: str
    study: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]


@dataclass(frozen=True)
class Source:
    """All that a page says beside numbers of ours.

    Attributes:
        name: Of its file.
        title: Of the page.
        methods: Whose verdict it is, by the names of their classes.
        citation: Authors, title, year.
        link: To the paper.
        claim: What the paper says, with its numbers.
        setting: Of the paper's experiments.
        differences: What the authors' code does otherwise.
        control: What was added, and why.
        seen_before: What was run and seen before the settings were fixed.
        runs: Studies that answer; a cell is that of the first set in which it was run.
        tuning: Studies that picked learning rates, on seeds of their own.
        tables: Of the numbers.
        questions: Of the verdict.
        would_settle: What would decide where this is inconclusive.
    """

    name: str
    title: str
    methods: tuple[str, ...]
    citation: str
    link: str
    claim: str
    setting: str
    differences: tuple[str, ...]
    control: str
    seen_before: str
    runs: tuple[RunSet, ...]
    tuning: tuple[Tuning, ...]
    tables: tuple[Table, ...]
    questions: tuple[Question, ...]
    would_settle: str


def read_source(path: Path) -> Source:
    """The source of a page; what is unknown or missing is named."""
    content = read_mapping(path)
    names = [field.name for field in fields(Source) if field.name != "name"]
    _check(content, names, str(path))
    try:
        return Source(
            name=path.stem,
            runs=tuple(_run_set(given) for given in content["runs"]),
            tuning=tuple(_tuning(given) for given in content["tuning"]),
            tables=tuple(_table(given) for given in content["tables"]),
            questions=tuple(_question(given) for given in content["questions"]),
            methods=tuple(content["methods"]),
            differences=tuple(content["differences"]),
            **{name: content[name] for name in names if isinstance(content[name], str)},
        )
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _check(given: Mapping[str, Any], names: list[str], where: str) -> None:
    check_keys(given, names, where)
    for name in names:
        if name not in given:
            raise ValueError(f"{where}: `{name}` is missing.")


def _run_set(given: Mapping[str, Any]) -> RunSet:
    _check(given, [field.name for field in fields(RunSet)], "`runs`")
    return RunSet(**given)


def _tuning(given: Mapping[str, Any]) -> Tuning:
    _check(given, [field.name for field in fields(Tuning)], "`tuning`")
    return Tuning(**given)


def _table(given: Mapping[str, Any]) -> Table:
    _check(given, [field.name for field in fields(Table)], "`tables`")
    return Table(given["title"], given["study"], tuple(given["rows"]), tuple(given["columns"]))


def _question(given: Mapping[str, Any]) -> Question:
    _check(given, [field.name for field in fields(Question)], "`questions`")
    if given["kind"] not in get_args(Kind):
        raise ValueError(f"`questions.kind` must be one of {', '.join(get_args(Kind))}, got {given['kind']!r}.")
    return Question(**{**given, "columns": tuple(given["columns"])})
