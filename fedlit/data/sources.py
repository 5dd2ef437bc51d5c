"""What data may be given: torch data sets, Hugging Face data sets, pandas frames; files and folders by their path."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from fedlit.data import datasets
from fedlit.data.image_folder import read_folder
from fedlit.data.items import Roles
from fedlit.data.parts import Part, Splits
from fedlit.data.splitting import Names, splits_of, with_test_set
from fedlit.data.stacking import Reading, part_of
from fedlit.data.tables import ENDINGS, frame_parts, is_frame, read_table, with_codes


@dataclass(frozen=True)
class Wanted:
    """What is wanted of data beside their items.

    Attributes:
        test_size: What fraction becomes the test set where there is none.
        seed: Draws it.
        owners: Whose each training sample is, and each test sample, where the partition has a list of it.
        image_size: Pixels of a side that the images of a folder are resized to.
    """

    test_size: float | None = None
    seed: int = 0
    owners: tuple[list | None, list | None] = (None, None)
    image_size: int | None = None


def read_sets(sets: Mapping[str, Any], how: Reading, wanted: Wanted) -> Splits:
    """Data sets of any kind that belong together: for training and perhaps for the test, by the user's names."""
    names = list(sets)
    given = list(sets.values())
    num_classes = 0
    parts: list[Part] = []
    if any(map(is_frame, given)):
        if not all(map(is_frame, given)):
            raise ValueError(f"`{names[0]}` and `{names[-1]}` must be of one kind, but one of them is a frame.")
        if how.collate_fn is not None or how.in_memory is False:
            _refuse_beside_arrays(replace(how, roles=Roles()), f"`{names[0]}`, which is a table")
        frames, num_classes = frame_parts(given, names, how.roles)
        parts += frames
    elif all(map(is_hugging_face, given)):
        parts, num_classes = _hugging_face_parts(given, names, how)
    else:
        parts += [part_of(dataset, name, how) for dataset, name in zip(given, names, strict=True)]
    parts[0] = _owned(parts[0], wanted.owners[0], "clients")
    parts[-1] = _owned(parts[-1], wanted.owners[1], "test_clients") if len(parts) > 1 else parts[0]
    if len(parts) > 1:
        _refuse_beside_test_set(wanted)
    else:
        if wanted.test_size is None:
            raise ValueError(f"`{names[0]}` has no test set: set `data.test_size`, such as 0.2.")
        parts = [*with_test_set(parts[0], wanted.test_size, wanted.seed)]
    told = [Names(f"inputs of `{name}`", f"targets of `{name}`") for name in (names[0], names[-1])]
    return splits_of(
        dict(zip(("train", "test"), parts, strict=True)),
        dict(zip(("train", "test"), told, strict=True)),
        num_classes=num_classes,
    )


def fetch(dataset: str, root: str) -> Path:
    """The file or the folder of a data set, downloaded if it is a well-known one that is missing."""
    for path in datasets.places(dataset, root):
        if _is_table(path) and path.is_file():
            return path
        if dataset not in datasets.DATASETS and path.is_dir():
            return path
    if _is_table(Path(dataset)):
        raise FileNotFoundError(f"`data.dataset` {dataset}: {datasets.nothing_there('file', dataset, root)}.")
    return datasets.fetch(dataset, root)


def read_path(dataset: str, root: str, how: Reading, wanted: Wanted) -> Splits:
    """A data set by its name, or a user's own file or folder: .npz, .csv, .parquet, images."""
    path = fetch(dataset, root)
    if wanted.image_size is not None and not path.is_dir():
        raise ValueError(f"`data.image_size` is for a folder of images, but `data.dataset` is {dataset}.")
    if _is_table(path):
        return read_sets({"data.dataset": read_table(path)}, how, wanted)
    if path.is_dir():
        found = read_folder(path, wanted.image_size)
        names = {"train": "data.dataset"}
        if len(found) > 1:
            names = {part: f"data.dataset/{part}" for part in found}
        return read_sets({names[part]: files for part, files in found.items()}, how, wanted)
    _refuse_beside_arrays(how, f"`data.dataset` {dataset}, which is arrays")
    _refuse_beside_test_set(wanted)
    splits = datasets.read_images(dataset, root)
    train = _owned(splits.train, wanted.owners[0], "clients")
    test = _owned(splits.test, wanted.owners[1], "test_clients")
    return replace(splits, train=train, test=test)


def _owned(part: Part, listed: list | None, option: str) -> Part:
    """The part with its samples' owners, if there is a list of them."""
    if listed is None:
        return part
    if len(listed) != len(part):
        raise ValueError(f"`{option}` must name the client of each of {len(part)} samples, got {len(listed)}.")
    return replace(part, owners=np.array(listed))


def _refuse_beside_test_set(wanted: Wanted) -> None:
    if wanted.test_size is not None:
        raise ValueError("`data.test_size` is for data without a test set, but these have one.")


def _refuse_beside_arrays(how: Reading, told: str) -> None:
    """Options that say how items are read mean nothing where there are none."""
    roles = how.roles
    given = {"target": roles.target, "features": roles.features, "client": roles.client, "collate_fn": how.collate_fn}
    for option, value in given.items():
        if value is not None:
            raise ValueError(f"`data.{option}` has no meaning for {told}.")
    if how.in_memory is False:
        raise ValueError(f"`data.in_memory: false` has no meaning for {told} in memory.")


def _is_table(path: Path) -> bool:
    return path.suffix.lower() in ENDINGS


def is_hugging_face(value: object) -> bool:
    """Whether something is a data set of Hugging Face's `datasets`; the package itself need not be there."""
    return all(hasattr(value, name) for name in ("column_names", "features", "__getitem__", "__len__"))


class Coded:
    """A data set of dicts whose target is text, as a class.

    Args:
        dataset: With columns.
        target: Which of them.
        codes: The class of each sample.
    """

    def __init__(self, dataset: Any, target: str, codes: np.ndarray) -> None:
        self.dataset = dataset
        self.target = target
        self.codes = codes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.dataset[index], self.target: int(self.codes[index])}


def _hugging_face_parts(given: list[Any], names: list[str], how: Reading) -> tuple[list[Part], int]:
    """Parts of data sets that have columns, and how many classes there are, where the target says so."""
    whose = f"the columns of `{names[0]}`"
    target = how.roles.target_of(given[0].column_names, whose)
    how.roles.features_of(given[0].column_names, whose)
    num_classes = 0
    if hasattr(given[0].features, "get"):
        num_classes = int(getattr(given[0].features.get(target), "num_classes", None) or 0)
    client = how.roles.client
    if client is not None and client not in given[0].column_names:
        there = ", ".join(given[0].column_names)
        raise ValueError(f"`data.client` must be one of {whose}: {there}; got {client}.")
    owners = [np.asarray(part[client]) if client in part.column_names else None for part in given]
    if isinstance(given[0][0][target], str):
        targets = [np.asarray(dataset[target]) for dataset in given]
        codes, num_classes = with_codes(targets)
        given = [Coded(dataset, target, code) for dataset, code in zip(given, codes, strict=True)]
    sets = zip(given, names, owners, strict=True)
    return [part_of(dataset, name, how, known) for dataset, name, known in sets], num_classes
