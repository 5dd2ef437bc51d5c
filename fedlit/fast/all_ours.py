"""Whether no code of a user's runs beside the steps of a visit: then nobody need be guarded from it.

And whether none runs between two visits either: then what was found before the first holds for the others.
"""

from collections.abc import Iterable
from types import NoneType
from typing import Any

from lightning.pytorch.profilers import PassThroughProfiler, Profiler
from torch.optim import SGD, Optimizer
from torchmetrics import Metric

from fedlit.aggregation import Mean, Rule
from fedlit.data.batches import Batches
from fedlit.data.batching import Batching
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.data.inputs import Inputs
from fedlit.encoders import Encoder
from fedlit.fast.permission import DATA, OF_A_METHOD
from fedlit.fast.transparency import names_beside
from fedlit.methods.base import FederatedModule
from fedlit.partition import Partition
from fedlit.privacy import ClientLevelDP

# As they were at import: who replaces a function of theirs later wants it to be called.
SOURCE_AS_IMPORTED = tuple((cls, dict(vars(cls))) for cls in (FederatedData, Client))
BEGINNINGS_AS_IMPORTED = tuple((cls, dict(vars(cls))) for cls in (Batching, Inputs, Batches, SGD, Optimizer))
ASKED_AFTER_A_VISIT = {"check_upload", "metrics"}


def is_all_ours(
    module: FederatedModule, data: FederatedData, metrics: Iterable[Metric], encoder: Encoder | None
) -> bool:
    """Whether no code of a user's runs beside the steps of a visit, nor when it is looked at."""
    return (
        names_beside(module, FederatedModule).isdisjoint(ASKED_AFTER_A_VISIT)
        and is_plain_source(data)
        and all(_is_of(metric, "torchmetrics") for metric in metrics)
        and (encoder is None or _is_of(encoder, "fedlit"))
    )


def is_undisturbed(
    module: FederatedModule, data: FederatedData, rule: Rule | None, privacy: ClientLevelDP | None, profiler: Profiler
) -> bool:
    """Whether no code of a user's runs between two visits, nor where one begins; none beside them: `is_all_ours`.

    What combines uploads is given each before the next client is visited.
    """
    return (
        names_beside(module, FederatedModule) & OF_A_METHOD <= DATA
        and type(module._rule) is Mean
        and rule is None
        and privacy is None
        and type(profiler) is PassThroughProfiler
        and type(module.client_optimizers) in (dict, list, NoneType)
        and type(data.client_batch_sizes) is dict
        and not data.augmentation  # a step may draw, whatever it says
        and not any(_has_a_method_hung_on(partition) for partition in _partitions(data.partition))
        and all(as_imported.items() <= vars(cls).items() for cls, as_imported in BEGINNINGS_AS_IMPORTED)
    )


def _has_a_method_hung_on(thing: Any) -> bool:
    """Whether somebody has put a function in the place of its class's."""
    return any(callable(getattr(type(thing), name, None)) for name in vars(thing))


def is_plain_source(data: FederatedData) -> bool:
    """Whether batches are made by our code alone."""
    return (
        type(data) is FederatedData
        # Python itself may add a name, such as `__slotnames__` when something is copied.
        and all(as_imported.items() <= vars(cls).items() for cls, as_imported in SOURCE_AS_IMPORTED)
        and not _has_a_method_hung_on(data)
        and all(_is_of(partition, "fedlit") for partition in _partitions(data.partition))
        and all(_is_of(step, "fedlit") for step in data.augmentation)
    )


def _partitions(partition: Partition) -> list[Partition]:
    """A partition, and those that it holds."""
    found = [partition]
    for value in vars(partition).values():
        if isinstance(value, Partition):
            found += _partitions(value)
    return found


def _is_of(thing: Any, house: str) -> bool:
    """Whether the class of a thing was written in this package."""
    return type(thing).__module__.partition(".")[0] == house
