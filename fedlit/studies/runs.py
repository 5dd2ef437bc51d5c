"""The runs of a study: one for each cell and pair of seeds, where it lies, and how far it has come.

Cells that differ only in what they measure share their runs. A finished run is not made again, so its options must be
the same, and so must its fingerprint: digests of the user's own code and data.
"""

import csv
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from fedlit.own_modules import digest, own_files
from fedlit.records.files import write_whole
from fedlit.records.reading import EVENTS, read_events
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
LONGEST = 150  # characters of a folder's name
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
        """What `fedlit` is called with; `config` is what `write_config` wrote."""
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
        if not (self.root / CONFIG).exists():
            return
        remedy = "give another `--output`, or delete what is to be run again."
        before = flat(_written(self.root / CONFIG))
        now = flat(self.whole_config)
        for name in [*now, *before]:
            if before.get(name) != now.get(name) and name != "trainer.default_root_dir":  # a study may be moved
                change = f"`{name}` {before.get(name)!r}, and now it would be {now.get(name)!r}"
                raise ValueError(f"{self.root} was run with {change}; {remedy}")
        if (self.root / FINGERPRINT).exists():  # older versions did not write it
            for name, digest_before in _written(self.root / FINGERPRINT).items():
                if self.digests.get(name, digest_before) != digest_before:
                    raise ValueError(f"{self.root} was run with another {name}: it has changed since; {remedy}")


def _written(path: Path) -> dict[str, Any]:
    """What a run wrote when it began; JSON is YAML, too."""
    content = read_yaml(path, str(path))
    if not isinstance(content, dict):
        raise ValueError(f"{path} must hold what the run began with, got {content!r}; delete {path.parent} to run it.")
    return content


def is_finished(folder: Path) -> bool:
    """Whether a run came to its end, and not to a signal."""
    try:
        events = read_events(folder / EVENTS)
    except (ValueError, OSError):  # it was deleted or damaged
        return False
    last = [event for event in events if event["event"] in ("end", "fit", "round")][-1:]
    return any(event["event"] == "end" and event["stopped_by"] is None for event in last)


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
    taken: set[str] = set()
    planned = {}
    for cell in study.cells:
        config = _without_seeds(resolve(cell))
        if study.adapt is not None and not config["data"]["init_args"].get("unseen_clients"):
            raise ValueError(f"{cell}: `adapt` needs clients that do not train; give `data.unseen_clients`.")
        if study.adapt is not None and not config["trainer"].get("enable_checkpointing", True):
            raise ValueError(f"{cell}: `adapt` begins from a checkpoint; `trainer.enable_checkpointing` must be true.")
        key = json.dumps(config, sort_keys=True)
        if key not in by_config:
            root = _own_folder(output / "runs", cell, taken)
            digests = {name: digest(file) for name, file in own_files(config).items()}
            runs = [Run(cell, seeds, root / seeds.name, config, digests, study.adapt) for seeds in study.seeds]
            by_config[key] = runs
        planned[cell] = by_config[key]
    return planned


def in_order(planned: Mapping[Cell, list[Run]]) -> list[Run]:
    """Every run once; each cell has its first seed before any has its second."""
    by_seed = zip(*planned.values(), strict=True)
    return list(dict.fromkeys(run for of_one_seed in by_seed for run in of_one_seed))


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


def slug(name: str) -> str:
    """A name that every file system takes.

    Example:
        >>> slug("MLP, non-IID(3)")
        'MLP_non-IID_3'
    """
    return re.sub(r"[^\w.-]+", "_", name).strip("_.")[:LONGEST] or "cell"


def _own_folder(runs: Path, cell: Cell, taken: set[str]) -> Path:
    """Where the runs of a cell lie, numbered if another cell has the name: a file system may ignore case."""
    folder = runs / slug(cell.row)
    if cell.column != ONLY_COLUMN:
        folder /= slug(cell.column)
    names = (folder.name, *(f"{folder.name}_{number}" for number in range(2, len(taken) + 2)))
    found = next(place for place in map(folder.with_name, names) if str(place).casefold() not in taken)
    taken.add(str(found).casefold())
    return found


def _without_seeds(config: Config) -> dict[str, Any]:
    """A run's options without those that the study sets."""
    copied = json.loads(json.dumps(config))
    copied.pop("seed_everything", None)
    copied.pop("ckpt_path", None)
    copied["data"]["init_args"].pop("partition_seed", None)
    copied["trainer"].pop("default_root_dir", None)
    return copied
