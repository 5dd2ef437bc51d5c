"""From a data set to a part of ours: stacked in memory where its samples are of one kind, fit and stay the same; else
read one by one.

Law: where nothing is random, both give the same batches, bit for bit.
"""

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import IterableDataset, Subset, TensorDataset

from fedlit.data.chance import is_random, places
from fedlit.data.items import Roles, class_of
from fedlit.data.loaded import Reader, fixed_seed
from fedlit.data.parts import Part, Read, Stacked
from fedlit.data.trees import leaves, mapped, num_bytes, told
from fedlit.notices import Notice
from fedlit.rng import isolated

InMemory = bool | Literal["auto"]
ROOM = 4e9  # bytes of a part that is held in memory unless `data.in_memory` says otherwise
KNOWN_TARGETS = ("targets", "labels")  # what torchvision's data sets call the classes of all their samples


@dataclass(frozen=True)
class Reading:
    """How data sets are read.

    Attributes:
        roles: Which part of an item is what.
        in_memory: Whether to hold all samples in memory; `auto` where they fit and nothing is random.
        num_workers: Processes that read samples which are not.
        collate_fn: Makes a batch of items.
    """

    roles: Roles = field(default_factory=Roles)
    in_memory: InMemory = "auto"
    num_workers: int = 0
    collate_fn: Callable[[list[Any]], Any] | None = None


def part_of(dataset: Any, name: str, how: Reading, owners: np.ndarray | None = None) -> Part:
    """The samples of a data set.

    Args:
        dataset: Anything with items and a length, or one that is iterated over.
        name: As the user calls it.
        how: It is read.
        owners: Whose each sample is, if its items do not say.
    """
    if isinstance(dataset, TensorDataset) and how.collate_fn is None and how.in_memory is not False:
        return replace(_of_tensors(dataset, name, how.roles), owners=owners)
    if isinstance(dataset, IterableDataset):
        if how.in_memory is False:
            raise ValueError(
                f"`data.in_memory: false` needs items that can be asked for, but `{name}` is iterated over."
            )
        dataset = list(dataset)
    if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise ValueError(f"`{name}` must be a data set, with items and a length, got a {type(dataset).__name__}.")
    if len(dataset) == 0:
        raise ValueError(f"`{name}` must not be empty, got no items.")
    reader = Reader(dataset, name, how.roles, how.collate_fn, how.num_workers)
    _check_roles(reader)
    draws = how.in_memory is not True and is_random(reader)
    if how.in_memory is True or (how.in_memory == "auto" and not draws and _fits(reader)):
        return _in_memory(reader, owners)
    if how.in_memory == "auto" and draws:
        told_once = f"`{name}` gives other samples at each reading: they are read one by one (see `data.in_memory`)."
        warnings.warn(told_once, Notice, stacklevel=2)
    return _read(reader, draws, owners)


def _of_tensors(dataset: TensorDataset, name: str, roles: Roles) -> Stacked:
    """Tensors that are stacked already are not copied."""
    for option in ("target", "features", "client"):
        if getattr(roles, option) is not None:
            raise ValueError(f"`data.{option}` names a key or a column, but `{name}` has tensors without names.")
    x, y = roles.pair(dataset.tensors, f"`{name}`")
    if isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 3:
        x = x[:, None]
    return Stacked(x, y)


def _check_roles(reader: Reader) -> None:
    """Keys are named only where items have some."""
    with isolated(0):
        item = reader.item(0, fixed_seed(0))
    if isinstance(item, Mapping):
        _check_client(item, reader)
        return
    for option in ("target", "features", "client"):
        if getattr(reader.roles, option) is not None:
            got = f"but `{reader.name}` gives a {type(item).__name__} for each sample"
            raise ValueError(f"`data.{option}` names a key or a column, {got}.")


def _check_client(item: Mapping, reader: Reader) -> None:
    client = reader.roles.client
    if client is not None and client not in item:
        raise ValueError(f"`data.client` must be one of the keys of `{reader.name}`: {', '.join(item)}; got {client}.")


def _fits(reader: Reader) -> bool:
    """Whether all samples have room, if they are as large as some; told if not."""
    with isolated(0):
        tried = [reader.item(index, fixed_seed(index)) for index in places(len(reader))]
        sizes = [num_bytes(_weighable(item)) for item in tried]
    needed = sum(sizes) / len(sizes) * len(reader)
    if needed <= ROOM:
        return True
    size = f"about {needed / 1e9:.1f} GB"
    told_once = f"`{reader.name}` is {size}: samples are read one by one (see `data.in_memory`, `data.num_workers`)."
    warnings.warn(told_once, Notice, stacklevel=3)
    return False


def _weighable(item: Any) -> Any:
    """With images as arrays of their pixels."""
    return mapped(lambda leaf: np.asarray(leaf) if hasattr(leaf, "getbands") else leaf, item)


def _in_memory(reader: Reader, owners: np.ndarray | None) -> Part:
    """All samples, each read once: stacked, or as they are where `data.collate_fn` wants them so."""
    if reader.collate_fn is not None:
        with isolated(0):
            items = [reader.item(index, fixed_seed(index)) for index in range(len(reader))]
        kept = replace(reader, dataset=items, num_workers=0)
        return _read(kept, is_random(kept), owners)
    clients: list[Any] = []
    with isolated(0):
        first = reader.sample(0, fixed_seed(0))
        kind = told(first)
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
    return Stacked(x, y, _owners(clients) if owners is None else owners)


def _read(reader: Reader, is_random: bool, owners: np.ndarray | None) -> Read:
    """Samples that stay where they are; classes and clients of all are looked up, or read once."""
    with isolated(0):
        first = reader.item(0, fixed_seed(0))
    some = places(len(reader))
    reader.batch((some, [fixed_seed(index) for index in some]))  # refuses what no batch can be made of
    example = reader.batch(([0], [fixed_seed(0)]))
    labels = None
    clients: list[Any] = []
    needs_clients = reader.roles.client is not None and owners is None
    has_classes = _class(first, reader) is not None
    if has_classes:
        labels = _known_labels(reader)
    if (has_classes and labels is None) or (needs_clients and isinstance(first, Mapping)):
        found, clients = _pass(reader)
        if has_classes and labels is None:
            labels = found
    if owners is None:
        owners = _owners(clients)
    return Read(reader, np.arange(len(reader)), example, labels, owners, is_random)


def _class(item: Any, reader: Reader) -> int | None:
    """The class that an item has for a target, if it is one; items that only `data.collate_fn` knows have none."""
    try:
        target = reader.roles.pair(item, f"`{reader.name}`")[1]
    except ValueError:
        if reader.collate_fn is None:
            raise
        return None
    if isinstance(target, Tensor) and target.ndim and reader.collate_fn is not None:
        return None  # a sequence that happens to be one long
    return class_of(target)


def _known_labels(reader: Reader) -> np.ndarray | None:
    """The classes that a data set tells of all its samples, if it does and they are those of some of its items."""
    told_of_all = _told_targets(reader.dataset)
    if told_of_all is None or told_of_all.shape != (len(reader),):
        return None
    with isolated(0):
        for index in places(len(reader)):
            if _class(reader.item(index, fixed_seed(index)), reader) != told_of_all[index]:
                return None
    return told_of_all


def _told_targets(dataset: Any) -> np.ndarray | None:
    if isinstance(dataset, Subset):
        of_all = _told_targets(dataset.dataset)
        return None if of_all is None else of_all[np.asarray(dataset.indices)]
    if isinstance(dataset, TensorDataset):
        values: Any = dataset.tensors[-1]
    else:
        values = next((getattr(dataset, name) for name in KNOWN_TARGETS if hasattr(dataset, name)), None)
    try:
        found = np.asarray(values)
    except Exception:  # whatever else it may be
        return None
    return found.astype(np.int64) if found.dtype.kind in "iu" and found.ndim == 1 else None


def _pass(reader: Reader) -> tuple[np.ndarray | None, list[Any]]:
    """The class and the client of each sample, by reading it once."""
    labels = []
    clients = []
    with isolated(0):
        for index in range(len(reader)):
            item = reader.item(index, fixed_seed(index))
            labels.append(_class(item, reader))
            clients.append(_client(item, reader.roles))
    if any(label is None for label in labels):
        strange = labels.index(None)
        if labels[0] is not None:
            told_class = f"a class, {labels[0]}, at item 0 and none at item {strange}"
            raise ValueError(f"`{reader.name}` must give targets of one kind, got {told_class}.")
        return None, clients
    return np.array(labels, np.int64), clients


def _client(item: Any, roles: Roles) -> Any:
    """Who an item says that it belongs to."""
    if roles.client is None or not isinstance(item, Mapping):
        return None
    value = item.get(roles.client)
    return value.item() if isinstance(value, Tensor | np.generic) else value


def _owners(clients: list[Any]) -> np.ndarray | None:
    if not clients or any(client is None for client in clients):
        return None
    return np.array(clients)
