"""What data may be given: torch data sets, Hugging Face data sets, pandas frames; files and folders by their path.

Invariant: where nothing is random, samples in memory and samples that are read give the same batches, bit for bit.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from fedlit.data.datasets import TABLES, fetch, read_folder, read_images
from fedlit.data.items import Roles, class_of, describe, equal, leaves, listed, mapped, num_bytes
from fedlit.data.loaders import Reader, fixed_seed, is_random, places
from fedlit.data.splits import LazySamples, Part, Splits, StackedSamples, splits_of, with_test_set
from fedlit.notices import Notice
from fedlit.rng import isolated

ROOM = 4e9  # bytes of a part that is held in memory unless `data.in_memory` says otherwise
KNOWN_TARGETS = ("targets", "labels")  # what torchvision's data sets call the classes of all their samples


@dataclass(frozen=True)
class ReadOptions:
    """How data are read.

    Attributes:
        roles: Which part of an item is what.
        in_memory: Whether to hold all samples in memory; `auto` where they fit and nothing is random.
        num_workers: Processes that read samples which are not.
        collate_fn: Makes a batch of items.
        test_size: What fraction becomes the test set where there is none.
        test_seed: Draws it.
        owners: The client of each training sample, and of each test sample, where the partition has a list of them.
        image_size: Pixels of a side that the images of a folder are resized to.
    """

    roles: Roles = field(default_factory=Roles)
    in_memory: bool | Literal["auto"] = "auto"
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None
    test_size: float | None = None
    test_seed: int = 0
    owners: tuple[list | None, list | None] = (None, None)
    image_size: int | None = None


def read_path(dataset: str, root: str, options: ReadOptions) -> Splits:
    """A data set by its name, or a user's own file or folder: .npz, .csv, .parquet, images."""
    path = fetch(dataset, root)
    if options.image_size is not None and not path.is_dir():
        raise ValueError(f"`data.image_size` is for a folder of images, but `data.dataset` is {dataset}.")
    if path.suffix.lower() in TABLES:
        return read_sets({"data.dataset": read_table(path)}, options)
    if path.is_dir():
        found = read_folder(path, options.image_size)
        names = {part: f"data.dataset/{part}" if len(found) > 1 else "data.dataset" for part in found}
        return read_sets({names[part]: files for part, files in found.items()}, options)
    _refuse_items_options(options, f"`data.dataset` {dataset}, which is arrays")
    _refuse_test_size(options)
    splits = read_images(dataset, root)
    train = _with_owners(splits.train, options.owners[0], "clients")
    test = _with_owners(splits.test, options.owners[1], "test_clients")
    return replace(splits, train=train, test=test)


def read_sets(sets: Mapping[str, Any], options: ReadOptions) -> Splits:
    """Data sets of any kind that belong together: for training and perhaps for the test, by their names in messages."""
    names = list(sets)
    given = list(sets.values())
    num_classes = 0
    if all(map(is_frame, given)):
        _refuse_items_options(replace(options, roles=Roles()), f"`{names[0]}`, which is a table")
        parts, num_classes = frame_parts(given, names, options.roles)
    elif all(map(is_hugging_face, given)):
        parts, num_classes = _hugging_face_parts(given, names, options)
    else:
        parts = [part_of(dataset, name, options) for dataset, name in zip(given, names, strict=True)]
    train = _with_owners(parts[0], options.owners[0], "clients")
    if len(parts) > 1:
        _refuse_test_size(options)
        test = _with_owners(parts[1], options.owners[1], "test_clients")
    else:
        if options.test_size is None:
            raise ValueError(f"`{names[0]}` has no test set: set `data.test_size`, such as 0.2.")
        train, test = with_test_set(train, options.test_size, options.test_seed)
    calls = [(f"inputs of `{name}`", f"targets of `{name}`") for name in (names[0], names[-1])]
    return splits_of({"train": train, "test": test}, {"train": calls[0], "test": calls[1]}, num_classes=num_classes)


def _with_owners(part: Part, listed: list | None, option: str) -> Part:
    """The part with its samples' owners, if there is a list of them."""
    if listed is None:
        return part
    if len(listed) != len(part):
        raise ValueError(f"`{option}` must name the client of each of {len(part)} samples, got {len(listed)}.")
    return replace(part, owners=np.array(listed))


def _refuse_test_size(options: ReadOptions) -> None:
    if options.test_size is not None:
        raise ValueError("`data.test_size` is for data without a test set, but these have one.")


def _refuse_items_options(options: ReadOptions, what: str) -> None:
    """Options that say how items are read mean nothing where there are none."""
    for option in [*options.roles.given, *(["collate_fn"] if options.collate_fn is not None else [])]:
        raise ValueError(f"`data.{option}` has no meaning for {what}.")
    if options.in_memory is False:
        raise ValueError(f"`data.in_memory: false` has no meaning for {what} in memory.")


def part_of(dataset: Any, name: str, options: ReadOptions, owners: np.ndarray | None = None) -> Part:
    """The samples of a data set.

    Args:
        dataset: Anything with items and a length.
        name: For messages.
        options: How it is read.
        owners: The client of each sample, where items do not name it.
    """
    if isinstance(dataset, TensorDataset) and options.collate_fn is None and options.in_memory is not False:
        _refuse_names(options.roles, f"`{name}` has tensors without names")
        x, y = options.roles.pair(dataset.tensors, f"`{name}`")  # stacked already: not copied
        if isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 3:
            x = x[:, None]
        return StackedSamples(x, y, owners)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(f"`{name}` must be a data set, with items and a length, got a {type(dataset).__name__}.")
    if len(dataset) == 0:
        raise ValueError(f"`{name}` must not be empty, got no items.")
    reader = Reader(dataset, name, options.roles, options.collate_fn, options.num_workers)
    with isolated(0):
        item = reader.item(0, fixed_seed(0))
    if isinstance(item, Mapping):
        options.roles.check_client(list(item), f"the keys of `{name}`")
    else:
        _refuse_names(options.roles, f"`{name}` gives a {type(item).__name__} for each sample")
    draws = options.in_memory is not True and is_random(reader)
    if options.in_memory is True or (options.in_memory == "auto" and not draws and _fits(reader)):
        return _in_memory(reader, owners)
    if options.in_memory == "auto" and draws:
        message = f"`{name}` gives other samples at each reading: they are read one by one (see `data.in_memory`)."
        warnings.warn(message, Notice, stacklevel=2)
    return _read(reader, draws, owners)


def _refuse_names(roles: Roles, why: str) -> None:
    """Keys are named only where items have some."""
    for option in roles.given:
        raise ValueError(f"`data.{option}` names a key or a column, but {why}.")


def _fits(reader: Reader) -> bool:
    """Whether all samples have room, if they are as large as some; a notice if not."""
    with isolated(0):
        tried = [reader.item(index, fixed_seed(index)) for index in places(len(reader))]
    # Of images, the pixels count.
    sizes = [num_bytes(mapped(lambda leaf: np.asarray(leaf) if hasattr(leaf, "getbands") else leaf, x)) for x in tried]
    needed = sum(sizes) / len(sizes) * len(reader)
    if needed <= ROOM:
        return True
    size = f"about {needed / 1e9:.1f} GB"
    message = f"`{reader.name}` is {size}: samples are read one by one (see `data.in_memory`, `data.num_workers`)."
    warnings.warn(message, Notice, stacklevel=3)
    return False


def _in_memory(reader: Reader, owners: np.ndarray | None) -> Part:
    """All samples, each read once: stacked, or as they are where `data.collate_fn` wants them so."""
    if reader.collate_fn is not None:
        with isolated(0):
            items = [reader.item(index, fixed_seed(index)) for index in range(len(reader))]
        kept = replace(reader, dataset=items, num_workers=0)
        return _read(kept, is_random(kept), owners)
    clients: list[Any] = []
    with isolated(0):
        first = reader.tensors(reader.item(0, fixed_seed(0)), 0)
        kind = describe(first)
        room = mapped(lambda leaf: leaf.new_empty(len(reader), *leaf.shape), first)
        rows = list(leaves(room))
        for index in range(len(reader)):
            item = reader.item(index, fixed_seed(index))
            sample = reader.tensors(item, index)
            reader.check_kind(sample, index, kind)
            for row, leaf in zip(rows, leaves(sample), strict=True):
                row[index] = leaf
            clients.append(_client(item, reader.roles))
    x, y = room
    return StackedSamples(x, y, _owners(clients) if owners is None else owners)


def _read(reader: Reader, is_random: bool, owners: np.ndarray | None) -> LazySamples:
    """Samples that are read on demand; classes and clients of all are looked up, or read once."""
    some = places(len(reader))
    key = (some, [fixed_seed(index) for index in some])
    batch = reader.batch(key)  # refuses what no batch can be made of
    with isolated(0):
        first = reader.item(0, fixed_seed(0))
        reader = replace(reader, draws_from_torch_alone=equal(batch, reader.batch_by_torch_alone(key)))
    example = reader.batch(([0], [fixed_seed(0)]))
    has_classes = _class(first, reader) is not None
    labels = _known_labels(reader) if has_classes else None
    needs_clients = owners is None and _client(first, reader.roles) is not None
    if needs_clients or (has_classes and labels is None):
        with isolated(0):
            items = (reader.item(index, fixed_seed(index)) for index in range(len(reader)))
            found = [(_class(item, reader), _client(item, reader.roles)) for item in items]
        if has_classes:
            labels = _complete_labels([label for label, _ in found], reader.name)
        if owners is None:
            owners = _owners([client for _, client in found])
    return LazySamples(reader, np.arange(len(reader)), example, labels, owners, is_random)


def _class(item: Any, reader: Reader) -> int | None:
    """The class that an item has for a target, if it is one; items that only `data.collate_fn` knows have none."""
    if reader.collate_fn is None:
        return class_of(reader.roles.pair(item, f"`{reader.name}`")[1])
    try:
        target = reader.roles.pair(item, "")[1]
    except ValueError:
        return None
    is_sequence = isinstance(target, Tensor) and target.ndim > 0  # perhaps one long
    return None if is_sequence else class_of(target)


def _complete_labels(labels: list[int | None], name: str) -> np.ndarray:
    if None in labels:
        found = f"a class, {labels[0]}, at item 0 and none at item {labels.index(None)}"
        raise ValueError(f"`{name}` must give targets of one kind, got {found}.")
    return np.array(labels, np.int64)


def _known_labels(reader: Reader) -> np.ndarray | None:
    """The classes of all samples by an attribute of the data set, if they are those of some of its items."""
    classes = _listed_classes(reader.dataset)
    if classes is None or classes.shape != (len(reader),):
        return None
    some = places(len(reader))
    with isolated(0):
        read = [_class(reader.item(index, fixed_seed(index)), reader) for index in some]
    return classes if read == classes[some].tolist() else None


def _listed_classes(dataset: Any) -> np.ndarray | None:
    if isinstance(dataset, Subset):
        of_all = _listed_classes(dataset.dataset)
        return None if of_all is None else of_all[np.asarray(dataset.indices)]
    values = next((getattr(dataset, name) for name in KNOWN_TARGETS if hasattr(dataset, name)), None)
    if not isinstance(values, list | tuple | np.ndarray | Tensor) or not len(values) or class_of(values[0]) is None:
        return None
    return np.asarray(values).astype(np.int64)


def _client(item: Any, roles: Roles) -> Any:
    """The client that an item names."""
    if roles.client is None or not isinstance(item, Mapping):
        return None
    value = item.get(roles.client)
    return value.item() if isinstance(value, Tensor | np.generic) else value


def _owners(clients: list[Any]) -> np.ndarray | None:
    return None if None in clients else np.array(clients)


def is_hugging_face(value: object) -> bool:
    """Whether something is a data set of Hugging Face's `datasets`; the package itself need not be there."""
    return all(hasattr(value, name) for name in ("column_names", "features", "__getitem__", "__len__"))


def _hugging_face_parts(given: list[Any], names: list[str], options: ReadOptions) -> tuple[list[Part], int]:
    """Parts of data sets that have columns, and how many classes there are, where the target says so."""
    columns = given[0].column_names
    whose = f"the columns of `{names[0]}`"
    target = options.roles.target_of(columns, whose)
    options.roles.features_of(columns, whose)
    options.roles.check_client(columns, whose)
    num_classes = int(getattr(given[0].features[target], "num_classes", None) or 0)
    client = options.roles.client
    owners = [np.asarray(part[client]) if client in part.column_names else None for part in given]
    if isinstance(given[0][0][target], str):
        targets = [np.asarray(dataset[target]) for dataset in given]
        codes, num_classes = with_codes(targets)
        given = [Coded(dataset, target, code) for dataset, code in zip(given, codes, strict=True)]
    sets = zip(given, names, owners, strict=True)
    return [part_of(dataset, name, options, known) for dataset, name, known in sets], num_classes


class Coded:
    """A data set of dicts whose target is text, with the code of its class in its place."""

    def __init__(self, dataset: Any, target: str, codes: np.ndarray) -> None:
        self.dataset = dataset
        self.target = target
        self.codes = codes

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {**self.dataset[index], self.target: int(self.codes[index])}


def is_frame(value: object) -> bool:
    """Whether something is a pandas frame; pandas itself need not be there."""
    return all(hasattr(value, name) for name in ("columns", "iloc", "to_numpy"))


def read_table(path: Path) -> Any:
    """A frame of a file."""
    try:
        import pandas
    except ImportError:
        raise ValueError(f"`data.dataset` {path} needs pandas: pip install 'fedlit[report]'.") from None
    try:
        return pandas.read_csv(path) if path.suffix == ".csv" else pandas.read_parquet(path)
    except ImportError:
        raise ValueError(f"`data.dataset` {path} needs what pandas reads parquet by: pip install pyarrow.") from None
    except Exception as error:  # a damaged file raises what it likes
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ValueError(f"`data.dataset` {path} cannot be read as a table: {why}") from error


def frame_parts(frames: Sequence[Any], names: Sequence[str], roles: Roles) -> tuple[list[Part], int]:
    """The samples of frames that belong together, and how many classes there are; 0 if targets are no classes.

    Text is a class: all that occur are sorted. Whole numbers are classes as they are, floats are values.
    """
    whose = f"the columns of `{names[0]}`"
    columns = list(frames[0].columns)
    target = roles.target_of(columns, whose)
    inputs = roles.features_of(columns, whose)
    roles.check_client(columns, whose)
    for frame, name in zip(frames, names, strict=True):
        missing = [column for column in (target, *inputs) if column not in frame.columns]
        if missing:
            raise ValueError(f"`{name}` must have the columns of `{names[0]}`; missing: {listed(missing)}.")
        if len(frame) == 0:
            raise ValueError(f"`{name}` must not be empty, got no rows.")
    targets = [_complete(frame, target, name) for frame, name in zip(frames, names, strict=True)]
    coded, num_classes = with_codes(targets)
    parts: list[Part] = []
    for frame, name, y in zip(frames, names, coded, strict=True):
        x = np.stack([_feature(frame[column], column, name) for column in inputs], axis=1)
        owners = _complete(frame, roles.client, name) if roles.client in frame.columns else None
        parts.append(StackedSamples(torch.from_numpy(x), torch.from_numpy(y), owners))
    return parts, num_classes


def with_codes(targets: Sequence[np.ndarray]) -> tuple[list[np.ndarray], int]:
    """Targets of several parts, text as places among all that occur; and how many classes that makes.

    Example:
        >>> coded, number = with_codes([np.array(["cat", "ant"]), np.array(["bee"])])
        >>> [codes.tolist() for codes in coded], number
        ([[2, 0], [1]], 3)
    """
    kinds = {values.dtype.kind for values in targets}
    if kinds <= set("iuf"):
        return [values.astype(np.int64 if kinds <= set("iu") else np.float32) for values in targets], 0
    texts = [values.astype(str) for values in targets]
    classes = np.unique(np.concatenate(texts))
    return [np.searchsorted(classes, text) for text in texts], len(classes)


def _complete(frame: Any, column: Any, name: str) -> np.ndarray:
    """A column in which no value may be missing."""
    missing = frame[column].isna().to_numpy()
    if missing.any():
        row = int(missing.argmax())
        raise ValueError(f"column `{column}` of `{name}` must have a value in every row, got none in row {row}.")
    return frame[column].to_numpy()


def _feature(column: Any, name: str, whose: str) -> np.ndarray:
    values = column.to_numpy()
    if values.dtype.kind not in "biuf":
        raise ValueError(
            f"column `{name}` of `{whose}` must be numbers to be a feature, got {column.dtype}: encode or drop it, or "
            "name the features in `data.features`."
        )
    finite = np.isfinite(values)
    if not finite.all():
        row = int(finite.argmin())
        raise ValueError(f"column `{name}` of `{whose}` must be finite, got {values[row]} in row {row}.")
    return values.astype(np.float32)
