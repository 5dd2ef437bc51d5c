"""A study: many runs that answer one question, as its file describes them.

Rows and columns are sets of options, as one would type them; a cell has those of its row and its column. Every cell is
run with the same pairs of seeds, so that a difference between two rows is a difference of pairs.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

from fedlit.studies.measure import Measure
from fedlit.studies.options import as_mapping, check_keys, is_number, is_whole, read_mapping, require

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
    "sweep",
    "tune_seeds",
    "tune_measure",
)
ONLY_COLUMN = ""  # the name of the column of a study that has none
MOST = 2**32 - 1  # a seed
Choice = tuple[str, Mapping[str, Any]]  # a row or a column: its name, and what it changes
FIRST_TUNE_SEED = 100  # where none is given
ON_TEST_SET = "_on_pooled"  # what no setting is selected by


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
class Cell:
    """A row in a column: a recipe with options, and what is measured of its runs."""

    row: str
    column: str
    recipe: str
    options: tuple[Mapping[str, Any], ...] = field(compare=False)  # of study, column, row and sweep: the last counts
    measure: Measure
    paper: float | None = None

    def __str__(self) -> str:
        return self.row if self.column == ONLY_COLUMN else f"{self.row}, {self.column}"


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
        sweep: Values of options from which each cell takes the best.
        tune_seeds: Pairs of seeds by which they are selected.
        tune_measure: What they are selected by, where it differs from the cell's own measure.
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
    sweep: Mapping[str, list[Any]] = field(default_factory=dict)
    tune_seeds: tuple[SeedPair, ...] = ()
    tune_measure: Mapping[str, Any] = field(default_factory=dict)

    def cell(self, row: str, column: str) -> Cell | None:
        """The cell of a row and a column, if the study has it."""
        return next((cell for cell in self.cells if (cell.row, cell.column) == (row, column)), None)


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
    columns = _choices(content, "columns") or {ONLY_COLUMN: {}}
    baseline = content.get("baseline", next(iter(rows)))
    require(baseline in rows, f"`baseline` must be one of the rows ({', '.join(rows)})", baseline)
    without = _without(content, rows, columns)
    papers = _papers(content, rows, columns)
    cells = []
    for row in rows.items():
        for column in columns.items():
            if column[0] not in without.get(row[0], ()):
                cell = _cell(content, row, column, path)
                cells.append(replace(cell, paper=papers.get((row[0], column[0]))))
    seeds = read_seeds(content.get("seeds", 1))
    return Study(
        title=str(content.get("title", "Comparison")),
        rows=tuple(rows),
        columns=tuple(columns),
        cells=tuple(cells),
        seeds=seeds,
        baseline=baseline,
        source=str(content.get("source", "")),
        note=str(content.get("note", "")),
        adapt=_adapt(content, cells),
        run_timeout=_run_timeout(content),
        sweep=_sweep(content),
        tune_seeds=_tune_seeds(content, seeds),
        tune_measure=_tune_measure(content),
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
    return fnmatchcase(cell.row, patterns[0]) and fnmatchcase(cell.column, patterns[1])


def _choices(content: Mapping[str, Any], which: str) -> dict[str, Mapping[str, Any]]:
    """Rows or columns by name: their options, and a `recipe` and a `measure` of their own."""
    found = {}
    for name, given in as_mapping(content.get(which, {}), f"`{which}`").items():
        where = f"`{which}.{name}`"
        found[str(name)] = as_mapping(given, where)
        recipe = found[str(name)].get("recipe")
        require(isinstance(recipe, str | None), f"{where}: `recipe` must be the name of a recipe", recipe)
        as_mapping(found[str(name)].get("measure"), f"{where}: `measure`")
    return found


def _cell(content: Mapping[str, Any], row: Choice, column: Choice, path: Path | None) -> Cell:
    where = f"row {row[0]!r}" + (f", column {column[0]!r}" if column[0] != ONLY_COLUMN else "")
    recipe = column[1].get("recipe") or row[1].get("recipe") or content.get("recipe")
    if not isinstance(recipe, str):
        raise ValueError(f"{where} has no recipe: give `recipe`, for the study or for the row.")
    if path is not None and (path.parent / recipe).is_file():  # one beside the study comes before others of its name
        recipe = str(path.parent / recipe)
    measured = dict(as_mapping(content.get("measure"), "`measure`"))
    options = [as_mapping(content.get("options"), "`options`")]
    for _, given in (row, column):
        measured |= given.get("measure") or {}
    for _, given in (column, row):
        options.append({name: value for name, value in given.items() if name not in ("recipe", "measure")})
    try:
        measure = Measure.read(measured)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    return Cell(row[0], column[0], recipe, tuple(options), measure)


def _adapt(content: Mapping[str, Any], cells: Iterable[Cell]) -> int | None:
    epochs = content.get("adapt")
    for cell in cells:
        if epochs is None and cell.measure.over == "newcomers":
            raise ValueError(
                f"{cell}: `measure.over: newcomers` needs `adapt`, the epochs that newcomers train for, such as 10."
            )
    require(epochs is None or is_whole(epochs, 1), "`adapt` must be a number of epochs, at least 1", epochs)
    return epochs


def _run_timeout(content: Mapping[str, Any]) -> float | None:
    seconds = content.get("run_timeout")
    is_right = seconds is None or (is_number(seconds) and seconds > 0)
    require(is_right, "`run_timeout` must be a number of seconds above 0, or null", seconds)
    return seconds


def _without(content: Mapping[str, Any], rows: Iterable[str], columns: Collection[str]) -> Mapping[str, Any]:
    """By row, the columns in which it has no cell."""
    without = as_mapping(content.get("without", {}), "`without`")
    for row, left_out in without.items():
        require(isinstance(left_out, list), f"`without.{row}` must be a list of columns", left_out)
        _check_names(f"`without.{row}`", [row], rows)
        _check_names(f"`without.{row}`", left_out, columns)
        if len(left_out) == len(columns):
            raise ValueError(f"`without.{row}` leaves the row without a cell.")
    return without


def _papers(content: Mapping[str, Any], rows: Iterable[str], columns: Collection[str]) -> dict[tuple[str, str], float]:
    """The paper's own numbers by row and column: each row has one for each column, or names their columns."""
    found = {}
    for row, numbers in as_mapping(content.get("paper", {}), "`paper`").items():
        where = f"`paper.{row}`"
        _check_names("`paper`", [row], rows)
        if not isinstance(numbers, Mapping):
            values = numbers if isinstance(numbers, list) else [numbers]
            if len(values) != len(columns):
                raise ValueError(f"{where} must have {len(columns)} numbers, one for each column, got {len(values)}.")
            numbers = dict(zip(columns, values, strict=True))
        _check_names(where, numbers, columns)
        for column, value in numbers.items():
            is_right = value is None or is_number(value)
            require(is_right, f"{where} must hold numbers, or null where the paper has none", value)
            found[row, column] = value
    return found


def _check_names(where: str, names: Iterable[str], known: Iterable[str]) -> None:
    for name in names:
        if name not in known:
            raise ValueError(f"{where} names {name!r}, but there are {', '.join(known)}.")


def _sweep(content: Mapping[str, Any]) -> dict[str, list[Any]]:
    found = {}
    for option, values in as_mapping(content.get("sweep", {}), "`sweep`").items():
        is_list = isinstance(values, list) and len(values) > 1
        require(is_list, f"`sweep.{option}` must be a list of at least two values", values)
        is_once = all(values.count(value) == 1 for value in values)
        require(is_once, f"`sweep.{option}` must name each value once", values)
        found[str(option)] = values
    return found


def _tune_seeds(content: Mapping[str, Any], seeds: tuple[SeedPair, ...]) -> tuple[SeedPair, ...]:
    """Seeds that are not the table's: what was selected by a seed looks better with it than it is."""
    given = content.get("tune_seeds", 1)
    if is_whole(given, 1, 1000):
        others = (seed for seed in range(FIRST_TUNE_SEED, MOST) if SeedPair(seed, seed) not in seeds)
        return tuple(SeedPair(seed, seed) for seed, _ in zip(others, range(given), strict=False))
    found = read_seeds(given, "tune_seeds")
    for pair in found:
        require(pair not in seeds, "`tune_seeds` must not be among `seeds`, those of the table", pair.training)
    return found


def _tune_measure(content: Mapping[str, Any]) -> Mapping[str, Any]:
    given = as_mapping(content.get("tune_measure"), "`tune_measure`")
    try:
        metric = Measure.read(given).metric
    except ValueError as error:
        raise ValueError(f"`tune_measure`: {error}") from error
    is_right = not given or not metric.endswith(ON_TEST_SET)
    require(is_right, "`tune_measure.metric` must not be of the test set", metric)
    return given


def read_seeds(given: Any, where: str = "seeds") -> tuple[SeedPair, ...]:
    """Pairs from a number (so many), a list, or `training` and `partition`, one of which may be pinned.

    Example:
        >>> read_seeds(2)
        (SeedPair(training=1, partition=1), SeedPair(training=2, partition=2))
        >>> read_seeds({"training": [5, 6], "partition": 0})
        (SeedPair(training=5, partition=0), SeedPair(training=6, partition=0))
    """
    if not isinstance(given, Mapping | list):
        expected = f"`{where}` must be a number of seeds from 1 to 1000, or a list of them"
        require(is_whole(given, 1, 1000), expected, given)
        given = list(range(1, given + 1))
    both = given if isinstance(given, Mapping) else {"training": given, "partition": given}
    lists = [seeds for seeds in both.values() if isinstance(seeds, list)]
    if set(both) != {"training", "partition"} or not lists or not lists[0] or len(lists[0]) != len(lists[-1]):
        raise ValueError(
            f"`{where}` must be a number, a list, or `training` and `partition`: lists of equally many seeds, or a "
            f"list and a number, which is pinned; got {given!r}."
        )
    training, partition = (
        seeds if isinstance(seeds, list) else [seeds] * len(lists[0]) for seeds in (both["training"], both["partition"])
    )
    for seed in (*training, *partition):
        require(is_whole(seed, 0, MOST), f"`{where}`: a seed must be 0 to {MOST}", seed)
    pairs = tuple(SeedPair(*pair) for pair in zip(training, partition, strict=True))
    if len(set(pairs)) < len(pairs):
        raise ValueError(f"`{where}` names a seed twice; the same run would be counted twice.")
    return pairs
