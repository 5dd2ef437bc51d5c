"""A study: many runs that answer one question, as its file describes them.

Rows and columns are sets of options, as one would type them; a cell has those of its row and its column. Every cell is
run with the same pairs of seeds, so that a difference between two rows is a difference of pairs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from fedlit.studies.measure import Measure
from fedlit.studies.options import as_mapping, check_keys, is_number, read_mapping

KEYS = (
    "title",
    "source",
    "note",
    "recipe",
    "options",
    "rows",
    "columns",
    "without",
    "seeds",
    "measure",
    "adapt",
    "run_timeout",
    "baseline",
    "paper",
)
ONLY_COLUMN = ""  # the name of the column of a study that has none
MOST = 2**32  # seeds lie below


class SeedPair(NamedTuple):
    """The seeds of a run: of training and of the partition."""

    training: int
    partition: int

    @property
    def name(self) -> str:
        """Of a run's folder.

        Example:
            >>> SeedPair(3, 3).name, SeedPair(3, 1).name
            ('seed_3', 'seed_3_partition_1')
        """
        if self.training == self.partition:
            return f"seed_{self.training}"
        return f"seed_{self.training}_partition_{self.partition}"


@dataclass(frozen=True)
class Choice:
    """A row or a column: what it changes.

    Attributes:
        name: As the table shows it.
        recipe: A recipe of its own, in place of the study's.
        options: By name, as one would type them.
        measure: What it measures otherwise than the study.
    """

    name: str
    recipe: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    measure: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Cell:
    """A row in a column: a recipe with options, and what is measured of its runs."""

    row: str
    column: str
    recipe: str
    options: tuple[Mapping[str, Any], ...] = field(compare=False)  # one after the other; the last word holds
    measure: Measure
    paper: float | None = None

    def __str__(self) -> str:
        """As a person would call it."""
        if self.column == ONLY_COLUMN:
            return self.row
        return f"{self.row}, {self.column}"


@dataclass(frozen=True)
class Study:
    """A question: cells, pairs of seeds, and the row that all others are compared with.

    Attributes:
        title: Of its page.
        rows: Names.
        columns: Names.
        cells: Of rows and columns.
        seeds: Pairs of training and partition.
        baseline: The row that all others are compared with.
        source: Of the paper's numbers.
        note: What a reader must know.
        adapt: Local epochs of unseen clients after each fit; None if none joins.
        run_timeout: Seconds after which a run is ended and has failed; None is without a limit.
    """

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    cells: tuple[Cell, ...]
    seeds: tuple[SeedPair, ...]
    baseline: str
    source: str = ""
    note: str = ""
    adapt: int | None = None
    run_timeout: float | None = None

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell of a row and a column, if the study has it."""
        for cell in self.cells:
            if cell.row == row and cell.column == column:
                return cell
        return None


def read_study(path: Path) -> Study:
    """Read a study from its file; an error is one line that names the file."""
    content = read_mapping(path)
    check_keys(content, KEYS, str(path))
    try:
        return build_study(content, path)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def build_study(content: Mapping[str, Any], path: Path | None = None) -> Study:
    """A study from what stands in its file; `path` is where recipes are looked for first."""
    rows = _choices(content, "rows")
    if not rows:
        raise ValueError("`rows` must name at least one row.")
    columns = _choices(content, "columns") or [Choice(ONLY_COLUMN)]
    names = [row.name for row in rows]
    baseline = content.get("baseline", names[0])
    if baseline not in names:
        raise ValueError(f"`baseline` must be one of the rows ({', '.join(names)}), got {baseline!r}.")
    cells = []
    for row in rows:
        for column in columns:
            if not _is_left_out(content, row.name, column.name):
                cells.append(_cell(content, row, column, path))
    _check_left_out(content, rows, columns)
    _check_paper(content, rows, columns)
    return Study(
        title=str(content.get("title", "Comparison")),
        rows=tuple(names),
        columns=tuple(column.name for column in columns),
        cells=tuple(cells),
        seeds=read_seeds(content.get("seeds", 1)),
        baseline=baseline,
        source=str(content.get("source", "")),
        note=str(content.get("note", "")),
        adapt=_adapt(content, cells),
        run_timeout=_run_timeout(content),
    )


def chosen(study: Study, patterns: list[str]) -> Study:
    """The study of the cells that `--only` names: a pattern for rows and one for columns, or one for either."""
    if not patterns:
        return study
    if len(patterns) > 2:
        raise ValueError(f"`--only` takes a row and a column, got {len(patterns)} words: {' '.join(patterns)}.")
    found = tuple(cell for cell in study.cells if _is_chosen(cell, patterns))
    if not found:
        wanted = " ".join(patterns)
        raise ValueError(
            f"`--only {wanted}` names no cell; rows: {', '.join(study.rows)}; columns: {', '.join(study.columns)}."
        )
    rows = tuple(row for row in study.rows if any(cell.row == row for cell in found))
    columns = tuple(column for column in study.columns if any(cell.column == column for cell in found))
    baseline = study.baseline if study.baseline in rows else rows[0]
    return replace(study, rows=rows, columns=columns, cells=found, baseline=baseline)


def _is_chosen(cell: Cell, patterns: list[str]) -> bool:
    if len(patterns) == 1:
        return fnmatchcase(cell.row, patterns[0]) or fnmatchcase(cell.column, patterns[0])
    row, column = patterns
    return fnmatchcase(cell.row, row) and fnmatchcase(cell.column, column)


def _choices(content: Mapping[str, Any], which: str) -> list[Choice]:
    choices = []
    for name, given in as_mapping(content.get(which, {}), f"`{which}`").items():
        where = f"`{which}.{name}`"
        options = dict(as_mapping(given, where))
        recipe = options.pop("recipe", None)
        if recipe is not None and not isinstance(recipe, str):
            raise ValueError(f"{where}: `recipe` must be the name of a recipe, got {recipe!r}.")
        measure = as_mapping(options.pop("measure", {}), f"{where}: `measure`")
        choices.append(Choice(str(name), recipe, options, measure))
    return choices


def _cell(content: Mapping[str, Any], row: Choice, column: Choice, path: Path | None) -> Cell:
    where = f"row {row.name!r}"
    if column.name != ONLY_COLUMN:
        where += f", column {column.name!r}"
    recipe = column.recipe or row.recipe or content.get("recipe")
    if not isinstance(recipe, str):
        raise ValueError(f"{where} has no recipe: give `recipe`, for the study or for the row.")
    measured = {**as_mapping(content.get("measure", {}), "`measure`"), **row.measure, **column.measure}
    try:
        measure = Measure.read(measured)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    common = as_mapping(content.get("options", {}), "`options`")
    return Cell(
        row=row.name,
        column=column.name,
        recipe=_beside(recipe, path),
        options=(common, column.options, row.options),
        measure=measure,
        paper=_paper(content, row, column),
    )


def _beside(recipe: str, path: Path | None) -> str:
    """A recipe that lies beside the study is meant before any other of its name."""
    if path is not None and (path.parent / recipe).is_file():
        return str(path.parent / recipe)
    return recipe


def _adapt(content: Mapping[str, Any], cells: Iterable[Cell]) -> int | None:
    epochs = content.get("adapt")
    if epochs is None:
        for cell in cells:
            if cell.measure.over == "newcomers":
                raise ValueError(
                    f"{cell}: `measure.over: newcomers` needs `adapt`, the epochs that newcomers train for, such as 10."
                )
        return None
    if isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1:
        raise ValueError(f"`adapt` must be a number of epochs, at least 1, got {epochs!r}.")
    return epochs


def _run_timeout(content: Mapping[str, Any]) -> float | None:
    seconds = content.get("run_timeout")
    if seconds is not None and (not is_number(seconds) or seconds <= 0):
        raise ValueError(f"`run_timeout` must be a number of seconds above 0, or null, got {seconds!r}.")
    return seconds


def _is_left_out(content: Mapping[str, Any], row: str, column: str) -> bool:
    without = as_mapping(content.get("without", {}), "`without`")
    columns = without.get(row, [])
    if not isinstance(columns, list):
        raise ValueError(f"`without.{row}` must be a list of columns, got {columns!r}.")
    return column in columns


def _check_left_out(content: Mapping[str, Any], rows: list[Choice], columns: list[Choice]) -> None:
    without = as_mapping(content.get("without", {}), "`without`")
    for row, left_out in without.items():
        _check_names(f"`without.{row}`", [row], rows)
        _check_names(f"`without.{row}`", left_out, columns)
        if len(left_out) == len(columns):
            raise ValueError(f"`without.{row}` leaves the row without a cell.")


def _check_names(where: str, names: Iterable[str], choices: list[Choice]) -> None:
    known = [choice.name for choice in choices]
    for name in names:
        if name not in known:
            raise ValueError(f"{where} names {name!r}, but there are {', '.join(known)}.")


def _paper(content: Mapping[str, Any], row: Choice, column: Choice) -> float | None:
    """The paper's own number of a cell."""
    numbers = as_mapping(content.get("paper", {}), "`paper`").get(row.name)
    if isinstance(numbers, Mapping):
        return numbers.get(column.name)
    if isinstance(numbers, list):
        names = [str(name) for name in content.get("columns") or [ONLY_COLUMN]]
        position = names.index(column.name)
        return numbers[position] if position < len(numbers) else None
    return numbers


def _check_paper(content: Mapping[str, Any], rows: list[Choice], columns: list[Choice]) -> None:
    """A number for each cell that is named, and none too many."""
    for row, numbers in as_mapping(content.get("paper", {}), "`paper`").items():
        where = f"`paper.{row}`"
        _check_names("`paper`", [row], rows)
        if isinstance(numbers, Mapping):
            _check_names(where, numbers, columns)
            values = list(numbers.values())
        else:
            values = numbers if isinstance(numbers, list) else [numbers]
            if len(values) != len(columns):
                raise ValueError(f"{where} must have {len(columns)} numbers, one for each column, got {len(values)}.")
        for value in values:
            if value is not None and not is_number(value):
                raise ValueError(f"{where} must hold numbers, or null where the paper has none, got {value!r}.")


def read_seeds(given: Any) -> tuple[SeedPair, ...]:
    """Pairs from a number (so many), a list, or `training` and `partition`, one of which may be pinned.

    Example:
        >>> read_seeds(2)
        (SeedPair(training=1, partition=1), SeedPair(training=2, partition=2))
        >>> read_seeds({"training": [5, 6], "partition": 0})
        (SeedPair(training=5, partition=0), SeedPair(training=6, partition=0))
    """
    if not isinstance(given, Mapping):
        seeds = _many(given, "`seeds`")
        return tuple(SeedPair(seed, seed) for seed in seeds)
    check_keys(given, ("training", "partition"), "`seeds`")
    if set(given) != {"training", "partition"}:
        raise ValueError("`seeds` must give both `training` and `partition`, or a number or list for both.")
    return _pairs(given["training"], given["partition"])


def _pairs(training: Any, partition: Any) -> tuple[SeedPair, ...]:
    if not isinstance(training, list) and not isinstance(partition, list):
        raise ValueError("`seeds`: give a list for `training`, for `partition` or for both; a number pins the other.")
    if not isinstance(training, list):
        pinned = _seed(training, "`seeds.training`")
        return tuple(SeedPair(pinned, seed) for seed in _many(partition, "`seeds.partition`"))
    if not isinstance(partition, list):
        pinned = _seed(partition, "`seeds.partition`")
        return tuple(SeedPair(seed, pinned) for seed in _many(training, "`seeds.training`"))
    if len(training) != len(partition):
        raise ValueError(
            f"`seeds.training` and `seeds.partition` must have equally many, got {len(training)} and {len(partition)}."
        )
    firsts = [_seed(seed, "`seeds.training`") for seed in training]
    seconds = [_seed(seed, "`seeds.partition`") for seed in partition]
    pairs = tuple(SeedPair(*pair) for pair in zip(firsts, seconds, strict=True))
    if len(set(pairs)) < len(pairs):
        raise ValueError("`seeds` names a pair twice; the same run would be counted twice.")
    return pairs


def _many(given: Any, where: str) -> list[int]:
    if isinstance(given, list):
        seeds = [_seed(seed, where) for seed in given]
        if not seeds:
            raise ValueError(f"{where} must name at least one seed.")
        if len(set(seeds)) < len(seeds):
            raise ValueError(f"{where} names a seed twice; the same run would be counted twice.")
        return seeds
    if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 1000:
        raise ValueError(f"{where} must be a number of seeds from 1 to 1000, or a list of them, got {given!r}.")
    return list(range(1, given + 1))


def _seed(given: Any, where: str) -> int:
    if isinstance(given, bool) or not isinstance(given, int) or not 0 <= given < MOST:
        raise ValueError(f"{where}: a seed must be 0 to {MOST - 1}, got {given!r}.")
    return given
