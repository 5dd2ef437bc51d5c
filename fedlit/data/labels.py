"""Labels that do not begin at 0: most likely they count from 1, and a class that no sample has would be trained."""

import warnings

from fedlit.data.federated import FederatedData
from fedlit.data.joint import JointData
from fedlit.notices import Notice


def describe_labels(data: FederatedData) -> str | None:
    """Which labels there are, by the option that brings them; None where they begin at 0, or are no classes."""
    splits = data.splits
    if not splits.lowest_class or data.is_stand_in:
        return None
    where = f"`data.dataset` {data.dataset}"
    if isinstance(data, JointData):
        where = "one of `data.parts`"
    elif data.train_dataset is not None:
        where = "`data.train_dataset`"
    return f"labels of {where} are {splits.lowest_class} to {splits.num_classes - 1}"


def warn_of_labels(data: FederatedData) -> None:
    """A notice where no sample is of class 0: who has meant it knows."""
    labels = describe_labels(data)
    if labels is not None:
        lowest = data.splits.lowest_class
        remedy = f"if they count from {lowest}, subtract {lowest}"
        warnings.warn(f"{labels}, so that no sample is of class 0; {remedy}.", Notice, stacklevel=2)
