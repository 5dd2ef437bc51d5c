"""What is wrong with the options of the data, said before any sample is read."""

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral
from os import PathLike
from types import NoneType
from typing import TYPE_CHECKING, Literal

import numpy as np

from fedlit.bounds import check_choice, check_count, check_kind, check_number, check_positive, check_share
from fedlit.partition import Partition

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData


EMBEDDED = "fashion_sample"  # what there is if nothing else is asked for
Validation = Literal["train", "test", "reserve"]
MOST_CLIENTS = 1_000_000
MOST_WORKERS = 1024
MOST_PIXELS = 100_000
MOST_CLASSES = 1_000_000


def check_options(data: "FederatedData") -> None:
    """Numbers in their ranges, and clients that exist; what depends on the samples is checked by `setup`."""
    for name, text in (("dataset", data.dataset), ("root", data.root)):
        if not isinstance(text, str | PathLike):
            raise ValueError(f"`data.{name}` must be text, got {text!r}.")
    _check_kinds(data)
    check_count("data.num_clients", data.num_clients, most=MOST_CLIENTS)
    check_count("data.batch_size", data.batch_size)
    check_count("data.eval_batch_size", data.eval_batch_size)
    for k, size in data.client_batch_sizes.items():
        check_count(f"data.client_batch_sizes[{k}]", size)
    check_count("data.partition_seed", data.partition_seed, least=0, most=2**63 - 1)
    check_count("data.unseen_clients", data.unseen_clients, least=0)
    for name, share in (("opt_out", data.opt_out), ("opt_out_samples", data.opt_out_samples)):
        if not isinstance(share, list):
            check_share(f"data.{name}", share)
    is_fraction = isinstance(data.public, int | float) and 0 <= data.public < 1
    if data.public != "valid" and not is_fraction:
        raise ValueError(f"`data.public` must lie in [0, 1) or be `valid`, got {data.public}.")
    _check_normalisation(data)
    check_number("data.val_size", data.val_size)  # its range depends on where validation samples come from
    if data.own_test and data.validation == "test":
        raise ValueError(
            "`data.own_test` is what no choice looks at, but `data.validation: test` uses the test set; "
            "set it to train or reserve."
        )
    if not 0 <= data.unseen_clients < data.num_clients:
        raise ValueError(
            f"`data.unseen_clients` must leave a client to train: 0 to {data.num_clients - 1}, "
            f"got {data.unseen_clients}."
        )
    _check_ids(data, "client_batch_sizes", data.client_batch_sizes)
    if isinstance(data.opt_out, list):
        _check_ids(data, "opt_out", data.opt_out)
    _check_reading(data)
    if data.train_dataset is not None and data.dataset != EMBEDDED:
        raise ValueError(
            f"`data.train_dataset` stands in place of `data.dataset`: give one of them, got {data.dataset} beside it."
        )


def _check_reading(data: "FederatedData") -> None:
    """Where samples come from, and how they are read."""
    for name, text in (("target", data.target), ("client", data.client_column)):
        check_kind(f"data.{name}", text, (str, NoneType), "the name of a column or a key")
    check_kind("data.features", data.features, (list, tuple, NoneType), "a list of columns or keys")
    check_count("data.num_workers", data.num_workers, least=0, most=MOST_WORKERS)
    if data.in_memory not in (True, False, "auto") or isinstance(data.in_memory, float):
        raise ValueError(f"`data.in_memory` must be auto, true or false, got {data.in_memory!r}.")
    if data.collate_fn is not None and not callable(data.collate_fn):
        raise ValueError(f"`data.collate_fn` must be a function of a list of items, got {data.collate_fn!r}.")
    if data.image_size is not None:
        check_count("data.image_size", data.image_size, most=MOST_PIXELS)
    if data.num_classes is not None:
        check_count("data.num_classes", data.num_classes, most=MOST_CLASSES)
    if data.test_size is not None and not 0 < check_number("data.test_size", data.test_size) < 1:
        raise ValueError(f"`data.test_size` is a fraction in (0, 1), got {data.test_size}.")
    if data.image_size is not None and data.train_dataset is not None:
        raise ValueError("`data.image_size` is for a folder of images, but `data.train_dataset` is given.")
    if data.test_dataset is not None and data.train_dataset is None:
        raise ValueError("`data.train_dataset` and `data.test_dataset` go together: the training set is missing.")
    if data.train_dataset is not None and data.test_dataset is None and data.test_size is None:
        raise ValueError(
            "`data.train_dataset` and `data.test_dataset` go together: give both, or `data.test_size`, such as 0.2."
        )


def _check_kinds(data: "FederatedData") -> None:
    """The command line has looked at them already; Python code has not."""
    check_kind("data.partition", data.partition, Partition, "a partition, such as Dirichlet(alpha=0.5)")
    check_kind("data.augmentation", data.augmentation, (list, tuple), "a list of steps")
    for step in data.augmentation:
        if isinstance(step, type) or not callable(step) or not hasattr(step, "random"):
            raise ValueError(f"`data.augmentation` must hold augmentations, such as Flip(), got {step!r}.")
    if data.drop_last not in (True, False, "single") or isinstance(data.drop_last, float):
        raise ValueError(f"`data.drop_last` must be single, true or false, got {data.drop_last!r}.")
    check_choice("data.validation", data.validation, Validation)
    check_kind("data.client_batch_sizes", data.client_batch_sizes, Mapping, "a mapping from client id")


def _check_normalisation(data: "FederatedData") -> None:
    """One number, or one for each channel; how many there are is known once the images are."""
    for name, given in (("mean", data.mean), ("std", data.std)):
        if given is None:
            continue
        values = list(given) if isinstance(given, Sequence | np.ndarray) else [given]
        if not values:
            raise ValueError(f"`data.{name}` must be one number or one per channel, got none.")
        for value in values:
            if name == "std":
                check_positive("data.std", value)
            else:
                check_number("data.mean", value)


def _check_ids(data: "FederatedData", name: str, ids: Iterable[int]) -> None:
    for k in ids:
        if not isinstance(k, Integral) or not 0 <= k < data.num_clients:
            raise ValueError(
                f"`data.{name}` names client {k!r}, but the clients are 0 to {data.num_clients - 1} "
                f"(`data.num_clients` is {data.num_clients})."
            )
