"""Data in a few words, for titles: which data set, how it is dealt out, to how many."""

from inspect import signature
from pathlib import Path

from fedlit.data.federated import FederatedData
from fedlit.data.joint import JointData
from fedlit.partition import Partition

LONGEST = 20  # characters of an option that a title has room for


def in_words(data: FederatedData) -> str:
    """Such as ``fashion_sample, Dirichlet(alpha=0.3), 10 clients``."""
    if isinstance(data, JointData):
        return " + ".join(dict.fromkeys(in_words(part) for part in data.parts))
    return f"{_name(data)}, {_dealt(data.partition)}, {data.num_clients} clients"


def _name(data: FederatedData) -> str:
    if data.train_dataset is not None:
        return type(data.train_dataset).__name__
    return Path(str(data.dataset)).stem


def _dealt(partition: Partition) -> str:
    """The class and the first of its options, which is what one speaks of: Dirichlet(alpha=0.3)."""
    told = type(partition).__name__
    first = next(iter(signature(type(partition)).parameters), "")
    value = getattr(partition, first, None)
    if isinstance(value, int | float | str) and len(str(value)) <= LONGEST:
        told += f"({first}={value})"
    return told
