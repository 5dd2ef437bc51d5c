"""The runs of a study: one for each cell and pair of seeds, where it lies, and how far it has come.

Cells that differ only in what they measure share their runs. A finished run is not made again, so its options must be
the same, and so must its fingerprint: digests of the user's own code and data.
"""

import ast
import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import yaml

from fedlit.own_modules import own_modules, texts
from fedlit.records.files import write_whole
from fedlit.records.run_folder import newest_run
from fedlit.strict_yaml import read_yaml
from fedlit.studies.measure import Measure
from fedlit.studies.options import flat
from fedlit.studies.study import ONLY_COLUMN, Cell, SeedPair, Study

Config = Mapping[str, Any]  # every option of a run, resolved
Status = Literal["done", "begun", "new"]
Command = Literal["fit", "adapt"]
CONFIG = "run.yaml"
FINGERPRINT = "made_of.json"  # digests of the user's code and data
LOG = "fit.log"  # what it printed


@dataclass(frozen=True)
class Run:
    """One fit of a study.

    Attributes:
        cell: The first cell that it serves.
        seeds: Of training and of the partition.
        root: Its folder in the study's; `lightning_logs` stands in it.
        config: Every option, resolved, without seeds and folder.
        digests: Of the user's own code and data when the study was read, by name.
        adapt: Local epochs of unseen clients after the fit; None if none joins.
    """

    cell: Cell
    seeds: SeedPair
    root: Path
    config: Config = field(compare=False, repr=False)
    digests: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    adapt: int | None = None

    def __str__(self) -> str:
        """As a person would call it."""
        return f"{self.cell}, {self.seeds.name.replace('_', ' ')}"

    @property
    def folder(self) -> Path | None:
        """Of its newest attempt, if it was begun."""
        return newest_run(self.root)

    @property
    def status(self) -> Status:
        """Whether it is done."""
        if self.folder is None:
            return "new"
        return "done" if self.next_command is None else "begun"

    def has(self, measure: Measure) -> bool:
        """Whether what is measured is there: numbers of rounds are once the fit is done."""
        left = self.next_command
        return left is None or (left == "adapt" and measure.over != "newcomers")

    @property
    def next_command(self) -> Command | None:
        """What `fedlit` is to be called for next; None if it is done."""
        folder = self.folder
        if folder is None or not is_finished(folder):
            return "fit"
        if self.adapt is not None and epochs_adapted(folder) != self.adapt:
            return "adapt"
        return None

    def arguments(self, command: Command, config: Path) -> list[str]:
        """What `fedlit` is called with.

        Args:
            command: See `next_command`.
            config: What `write_config` wrote.
        """
        here = ["--config", str(config), "--trainer.default_root_dir", str(self.root)]  # a study may be moved
        if command == "fit":
            return ["fit", *here, "--ckpt_path", "auto"]
        return ["adapt", *here, "--ckpt_path", "last", "--epochs", str(self.adapt)]

    @property
    def whole_config(self) -> dict[str, Any]:
        """What `fedlit fit` is given."""
        config = json.loads(json.dumps(self.config))
        config["seed_everything"] = self.seeds.training
        config["data"]["init_args"]["partition_seed"] = self.seeds.partition
        config["trainer"]["default_root_dir"] = str(self.root)
        config["trainer"]["run_name"] = None  # attempts are numbered
        config["trainer"]["report"] = False  # the study has a page of its own; `fedlit report` makes a run's
        return config

    def write_config(self) -> Path:
        """Write the options into the run's folder, or check that they are those it began with."""
        path = self.root / CONFIG
        for name, file in own_files(self.config).items():
            if name in self.digests and digest(file) != self.digests[name]:
                raise ValueError(f"{name} has changed since the study was read; start `fedlit compare` again.")
        if path.exists():
            self.check_config()
        else:
            self.root.mkdir(parents=True, exist_ok=True)
            write_whole(self.root / FINGERPRINT, json.dumps(dict(self.digests), indent=1))
            write_whole(path, yaml.safe_dump(self.whole_config, sort_keys=False))
        return path

    def check_config(self) -> None:
        """Refuse a folder that was run with other options, code or data."""
        path = self.root / CONFIG
        if not path.exists():
            return
        before = flat(_written(path))
        now = flat(self.whole_config)
        before.pop("trainer.default_root_dir", None)  # a study may be moved
        now.pop("trainer.default_root_dir")
        for name in [*now, *before]:
            if before.get(name) != now.get(name):
                raise ValueError(
                    f"{self.root} was run with `{name}` {before.get(name)!r}, and now it would be {now.get(name)!r}; "
                    "give another `--output`, or delete what is to be run again."
                )
        self._check_fingerprint()

    def _check_fingerprint(self) -> None:
        path = self.root / FINGERPRINT
        if not path.exists():  # of a version that did not write it
            return
        for name, before in _written(path).items():
            if self.digests.get(name, before) != before:
                raise ValueError(
                    f"{self.root} was run with another {name}: it has changed since; "
                    "give another `--output`, or delete what is to be run again."
                )


def _written(path: Path) -> dict[str, Any]:
    """What a run wrote when it began; JSON is YAML, too."""
    content = read_yaml(path, str(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold what the run began with, got {content!r}; delete {path.parent} to run it.")
    return content


def is_finished(folder: Path) -> bool:
    """Whether a run came to its end, and not to a signal."""
    try:
        lines = (folder / "events.jsonl").read_text(errors="replace").splitlines()
    except OSError:  # it has not begun, or was deleted
        return False
    for line in reversed(lines):
        try:
            event = json.loads(line)
        except json.JSONDecodeError:  # half a line of a killed run
            continue
        kind = event.get("event") if isinstance(event, dict) else None
        if kind == "end":
            return event.get("stopped_by", ...) is None
        if kind in ("fit", "round"):
            return False
    return False


def epochs_adapted(folder: Path) -> int | None:
    """The local epochs of a run's newcomers; None if none has joined or adapt.csv cannot be read."""
    try:
        with (folder / "adapt.csv").open(newline="", encoding="utf-8", errors="replace") as file:
            return max((int(row["round"]) for row in csv.DictReader(file)), default=None)
    except (OSError, KeyError, TypeError, ValueError, csv.Error):
        return None


def plan_runs(study: Study, output: Path, resolve: Callable[[Cell], Config]) -> dict[Cell, list[Run]]:
    """The runs of every cell, in the order of the study's seeds; cells of the same options share theirs."""
    by_config: dict[str, list[Run]] = {}
    roots: dict[Path, Cell] = {}
    planned = {}
    for cell in study.cells:
        config = _without_seeds(resolve(cell))
        if study.adapt is not None and not config["data"]["init_args"].get("unseen_clients"):
            raise ValueError(f"{cell}: `adapt` needs clients that do not train; give `data.unseen_clients`.")
        if study.adapt is not None and not config["trainer"].get("enable_checkpointing", True):
            raise ValueError(f"{cell}: `adapt` begins from a checkpoint; `trainer.enable_checkpointing` must be true.")
        key = json.dumps(config, sort_keys=True)
        if key not in by_config:
            root = _own_folder(output / "runs" / cell_folder(cell), roots)
            roots[root] = cell
            digests = {name: digest(file) for name, file in own_files(config).items()}
            runs = [Run(cell, seeds, root / seeds.name, config, digests, study.adapt) for seeds in study.seeds]
            by_config[key] = runs
        planned[cell] = by_config[key]
    return planned


def in_order(planned: Mapping[Cell, list[Run]]) -> list[Run]:
    """Every run once; each cell has its first seed before any has its second."""
    runs = []
    for of_one_seed in zip(*planned.values(), strict=True):
        for run in of_one_seed:
            if run not in runs:
                runs.append(run)
    return runs


def share(runs: list[Run], array: str | None) -> list[Run]:
    """The runs of `--array N/M`: every M-th, from the N-th on.

    Example:
        >>> share([1, 2, 3, 4, 5], "2/2")
        [2, 4]
    """
    if array is None:
        return runs
    words = re.fullmatch(r"(\d+)/(\d+)", array)
    if words is None or not 1 <= int(words[1]) <= int(words[2]):
        raise ValueError(f"`--array` must be N/M with N from 1 to M, such as 1/4, got {array}.")
    return runs[int(words[1]) - 1 :: int(words[2])]


def cell_folder(cell: Cell) -> Path:
    """Where the runs of a cell lie.

    Example:
        >>> slug("MLP, non-IID(3)")
        'MLP_non-IID_3'
    """
    if cell.column == ONLY_COLUMN:
        return Path(slug(cell.row))
    return Path(slug(cell.row)) / slug(cell.column)


def slug(name: str) -> str:
    """A name that every file system takes."""
    return re.sub(r"[^\w.-]+", "_", name).strip("_.") or "cell"


def _own_folder(folder: Path, taken: Mapping[Path, Cell]) -> Path:
    """The folder, numbered if another cell has it: a file system may ignore case."""
    known = {str(path).casefold() for path in taken}
    candidate = folder
    number = 2
    while str(candidate).casefold() in known:
        candidate = folder.with_name(f"{folder.name}_{number}")
        number += 1
    return candidate


def _without_seeds(config: Config) -> dict[str, Any]:
    """A run's options without those that the study sets."""
    copied = json.loads(json.dumps(config))
    copied.pop("seed_everything", None)
    copied.pop("ckpt_path", None)
    copied["data"]["init_args"].pop("partition_seed", None)
    copied["trainer"].pop("default_root_dir", None)
    return copied


def own_files(config: Mapping[str, Any]) -> dict[str, Path]:
    """The user's own files that options name, and the user's modules that these import, by name.

    Args:
        config: Every option, resolved.
    """
    found = own_modules(config)
    data = config.get("data", {}).get("init_args", {})
    root = Path(str(data.get("root", "."))).expanduser()
    for text in texts(config):
        for path in (Path(text).expanduser(), root / text, root / f"{text}.npz"):
            if _is_file(path) or (text == data.get("dataset") and path.is_dir()):
                found[text] = path
                break
    return found


def digest(path: Path) -> str:
    """The digest of a file or folder; of Python code without comments."""
    if path.is_dir():
        listed = [f"{file.relative_to(path)} {file.stat().st_size}" for file in sorted(path.rglob("*"))]
        return sha256("\n".join(listed).encode()).hexdigest()
    if not path.exists():
        return "gone"
    status = path.stat()
    return _digest(path, status.st_mtime_ns, status.st_size)


@lru_cache(maxsize=1000)
def _digest(path: Path, modified: int, size: int) -> str:
    """A large file is read once, unless it is changed."""
    if path.suffix == ".py":
        try:
            return sha256(ast.dump(ast.parse(path.read_bytes())).encode()).hexdigest()
        except (SyntaxError, ValueError):
            pass  # as it stands, then
    seen = sha256()
    with path.open("rb") as file:
        while block := file.read(2**20):
            seen.update(block)
    return seen.hexdigest()


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # no name that a file could have
        return False
