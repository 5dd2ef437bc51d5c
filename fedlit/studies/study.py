"""A study: many runs that answer one question, as its file describes them.

Rows and columns are sets of options, as one would type them; a cell has those of its row and its column. Every cell is
run with the same pairs of seeds, so that a difference between two rows is a difference of pairs.
"""

from collections.abc import Iterable, Mapping, Sequence
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
    "sweep",
    "tune_seeds",
    "tune_measure",
)
ONLY_COLUMN = ""  # the name of the column of a study that has none
MOST = 2**32  # seeds lie below
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
    columns = _choices(content, "columns") or [Choice(ONLY_COLUMN)]
    names = [row.name for row in rows]
    baseline = content.get("baseline", names[0])
    if baseline not in names:
        raise ValueError(f"`baseline` must be one of the rows ({', '.join(names)}), got {baseline!r}.")
    without = _without(content, rows, columns)
    papers = _papers(content, rows, columns)
    cells = []
    for row in rows:
        for column in columns:
            if column.name not in without.get(row.name, ()):
                cell = _cell(content, row, column, path)
                cells.append(replace(cell, paper=papers.get((row.name, column.name))))
    seeds = read_seeds(content.get("seeds", 1))
    return Study(
        title=str(content.get("title", "Comparison")),
        rows=tuple(names),
        columns=tuple(column.name for column in columns),
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


def of_recipes(recipes: Sequence[str]) -> dict[str, Any]:
    """The content of a study that has a row for each recipe.

    Example:
        >>> of_recipes(["fedavg_fashion.yaml", "mine/fml.yaml"])["rows"]
        {'fedavg_fashion': {'recipe': 'fedavg_fashion.yaml'}, 'fml': {'recipe': 'mine/fml.yaml'}}
    """
    stems = [Path(recipe).stem for recipe in recipes]
    rows: dict[str, Any] = {}
    for recipe, stem in zip(recipes, stems, strict=True):
        name = stem if stems.count(stem) == 1 else str(Path(recipe).with_suffix(""))
        if name in rows:
            raise ValueError(f"{recipe} is given twice.")
        rows[name] = {"recipe": recipe}
    return {"title": " / ".join(rows), "rows": rows}


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
    if path is not None and (path.parent / recipe).is_file():  # one beside the study comes before others of its name
        recipe = str(path.parent / recipe)
    measured = {**as_mapping(content.get("measure", {}), "`measure`"), **row.measure, **column.measure}
    try:
        measure = Measure.read(measured)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error
    common = as_mapping(content.get("options", {}), "`options`")
    return Cell(row.name, column.name, recipe, (common, column.options, row.options), measure)


def _adapt(content: Mapping[str, Any], cells: Iterable[Cell]) -> int | None:
    epochs = content.get("adapt")
    for cell in cells:
        if epochs is None and cell.measure.over == "newcomers":
            raise ValueError(
                f"{cell}: `measure.over: newcomers` needs `adapt`, the epochs that newcomers train for, such as 10."
            )
    if epochs is not None and (isinstance(epochs, bool) or not isinstance(epochs, int) or epochs < 1):
        raise ValueError(f"`adapt` must be a number of epochs, at least 1, got {epochs!r}.")
    return epochs


def _run_timeout(content: Mapping[str, Any]) -> float | None:
    seconds = content.get("run_timeout")
    if seconds is not None and (not is_number(seconds) or seconds <= 0):
        raise ValueError(f"`run_timeout` must be a number of seconds above 0, or null, got {seconds!r}.")
    return seconds


def _without(content: Mapping[str, Any], rows: list[Choice], columns: list[Choice]) -> Mapping[str, Any]:
    """By row, the columns in which it has no cell."""
    without = as_mapping(content.get("without", {}), "`without`")
    for row, left_out in without.items():
        if not isinstance(left_out, list):
            raise ValueError(f"`without.{row}` must be a list of columns, got {left_out!r}.")
        _check_names(f"`without.{row}`", [row], rows)
        _check_names(f"`without.{row}`", left_out, columns)
        if len(left_out) == len(columns):
            raise ValueError(f"`without.{row}` leaves the row without a cell.")
    return without


def _papers(content: Mapping[str, Any], rows: list[Choice], columns: list[Choice]) -> dict[tuple[str, str], float]:
    """The paper's own numbers by row and column: each row has one for each column, or names their columns."""
    found = {}
    for row, numbers in as_mapping(content.get("paper", {}), "`paper`").items():
        where = f"`paper.{row}`"
        _check_names("`paper`", [row], rows)
        if not isinstance(numbers, Mapping):
            values = numbers if isinstance(numbers, list) else [numbers]
            if len(values) != len(columns):
                raise ValueError(f"{where} must have {len(columns)} numbers, one for each column, got {len(values)}.")
            numbers = dict(zip([column.name for column in columns], values, strict=True))
        _check_names(where, numbers, columns)
        for column, value in numbers.items():
            if value is not None and not is_number(value):
                raise ValueError(f"{where} must hold numbers, or null where the paper has none, got {value!r}.")
            found[row, column] = value
    return found


def _check_names(where: str, names: Iterable[str], choices: list[Choice]) -> None:
    known = [choice.name for choice in choices]
    for name in names:
        if name not in known:
            raise ValueError(f"{where} names {name!r}, but there are {', '.join(known)}.")


def _sweep(content: Mapping[str, Any]) -> dict[str, list[Any]]:
    found = {}
    for option, values in as_mapping(content.get("sweep", {}), "`sweep`").items():
        if not isinstance(values, list) or len(values) < 2:
            raise ValueError(f"`sweep.{option}` must be a list of at least two values, got {values!r}.")
        if any(values.count(value) > 1 for value in values):
            raise ValueError(f"`sweep.{option}` names a value twice, got {values!r}.")
        found[str(option)] = values
    return found


def _tune_seeds(content: Mapping[str, Any], seeds: tuple[SeedPair, ...]) -> tuple[SeedPair, ...]:
    """Seeds that are not the table's: what was selected by a seed looks better with it than it is."""
    given = content.get("tune_seeds", 1)
    if isinstance(given, int) and not isinstance(given, bool) and 1 <= given <= 1000:
        others = (seed for seed in range(FIRST_TUNE_SEED, MOST) if SeedPair(seed, seed) not in seeds)
        return tuple(SeedPair(seed, seed) for seed, _ in zip(others, range(given), strict=False))
    found = read_seeds(given, "tune_seeds")
    for pair in found:
        if pair in seeds:
            raise ValueError(f"`tune_seeds` must not be seeds of the table, got {pair.training}, which is in `seeds`.")
    return found


def _tune_measure(content: Mapping[str, Any]) -> Mapping[str, Any]:
    given = as_mapping(content.get("tune_measure", {}), "`tune_measure`")
    if str(given.get("metric", "")).endswith(ON_TEST_SET):
        raise ValueError(
            f"`tune_measure.metric` must not be of the test set, got {given['metric']!r}; give one on own data."
        )
    try:
        Measure.read(given)
    except ValueError as error:
        raise ValueError(str(error).replace("`measure", "`tune_measure")) from error
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
        if isinstance(given, bool) or not isinstance(given, int) or not 1 <= given <= 1000:
            raise ValueError(f"`{where}` must be a number of seeds from 1 to 1000, or a list of them, got {given!r}.")
        given = list(range(1, given + 1))
    if not isinstance(given, Mapping):
        given = {"training": given, "partition": given}
    check_keys(given, ("training", "partition"), f"`{where}`")
    if set(given) != {"training", "partition"}:
        raise ValueError(f"`{where}` must give both `training` and `partition`, or a number or list for both.")
    lists = [value for value in given.values() if isinstance(value, list)]
    if not lists:
        raise ValueError(
            f"`{where}`: give a list for `training`, for `partition` or for both; a number pins the other."
        )
    if len(lists[0]) != len(lists[-1]):
        raise ValueError(
            f"`{where}.training` and `{where}.partition` must have equally many, got {len(given['training'])} and "
            f"{len(given['partition'])}."
        )
    if not lists[0]:
        raise ValueError(f"`{where}` must name at least one seed.")
    columns = []
    for name in ("training", "partition"):
        seeds = given[name] if isinstance(given[name], list) else [given[name]] * len(lists[0])
        for seed in seeds:
            if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < MOST:
                raise ValueError(f"`{where}`: a seed must be 0 to {MOST - 1}, got {seed!r}.")
        columns.append(seeds)
    pairs = tuple(SeedPair(*pair) for pair in zip(*columns, strict=True))
    if len(set(pairs)) < len(pairs):
        raise ValueError(f"`{where}` names a seed twice; the same run would be counted twice.")
    return pairs
