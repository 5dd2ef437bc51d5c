"""Data whose samples are elsewhere: on clients' own hosts, or where a checkpoint was trained.

A client's host has its samples alone, the server's has none. Neither has a partition, or an index of what others hold;
the server knows how many samples a client has.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedlit.data.assignment import Assignment
from fedlit.data.federated import FederatedData
from fedlit.data.items import describe, equal
from fedlit.data.preprocessing import prepare_as
from fedlit.partition import IID

EACH = 2  # blank samples of a client, one of them to validate on


def placeholder_data(kept: Mapping[str, Any], like: FederatedData | None) -> FederatedData:
    """Data of blank samples that are prepared as those that a checkpoint's networks were trained on.

    Args:
        kept: By `kept_preprocessing`.
        like: As the user has them; their samples are not looked at.
    """
    if not isinstance(kept["inputs"], Tensor) or not isinstance(kept["targets"], Tensor):
        raise ValueError("blank samples can stand for single tensors only.")
    if like is not None and like.pixels_differ:
        raise ValueError("clients see pixels in an order of their own, which needs the data.")
    options: dict[str, Any] = {}
    if like is not None:
        options = {name: getattr(like, name) for name in ("augmentation", "mean", "std", "eval_batch_size")}
    data = FederatedData(
        train_dataset=_blank(kept, EACH * kept["num_clients"]),
        test_dataset=_blank(kept, EACH),
        num_clients=kept["num_clients"],
        unseen_clients=kept["unseen_clients"],
        partition=IID(),
        val_size=1,
        **options,
    )
    data.setup()
    prepare_as(data, kept)
    data.is_placeholder = True
    return data


def _blank(kept: Mapping[str, Any], number: int) -> TensorDataset:
    """So many samples of zeros; one is of the last class, by which classes are counted."""
    x = kept["inputs"].expand(number, *kept["inputs"].shape[1:]).clone()
    y = kept["targets"].expand(number, *kept["targets"].shape[1:]).clone()
    if kept["num_classes"]:
        y[0] = kept["num_classes"] - 1
    return TensorDataset(x, y)


def noise_like(x: Tensor) -> Tensor:
    """Inputs of the same kind, drawn at random: blank ones have one output for all."""
    draw = torch.Generator().manual_seed(0)
    if x.dtype == torch.uint8:
        return torch.randint(0, 256, x.shape, generator=draw).to(torch.uint8)
    return torch.randn(x.shape, generator=draw).to(x.dtype) if x.is_floating_point() else x


def restrict_to_client(data: FederatedData, client: int) -> None:
    """Let all samples be those of one client, and read them; the others have none here.

    Args:
        data: As the recipe has them, with the data set of this host.
        client: Its number.
    """
    num_clients = data.num_clients
    if data.censor:
        raise ValueError("`data.censor` is for a simulation: a host censors its data itself before it takes part.")
    if not isinstance(data.opt_out, list):
        if data.opt_out not in (0, 1):
            raise ValueError(f"`data.opt_out` must be ids where clients have their own data, got {data.opt_out}.")
        data.opt_out = list(range(num_clients)) if data.opt_out else []
    data.opt_out = [0] if client in data.opt_out else []
    data.partition = IID()
    data.num_clients = 1
    data.only_client = client
    data.prepare_data()
    try:
        data.setup()
    except ValueError as error:
        raise ValueError(f"Data of client {client}: {error}") from error
    if data.splits.measured and data.mean is None and data.inputs.normalisation is not None:
        raise ValueError("`data.mean` and `data.std` must be given: else every host would normalise by its own images.")
    data._splits = replace(data.splits, lowest_class=0)  # a client need not have samples of every class
    vars(data)["num_clients"] = num_clients  # past the check that options are fixed by now
    data._assignment = as_one_of_many(data.assignment, client, num_clients)
    data._resplit = (0, data._assignment)


def set_num_classes(data: FederatedData, outputs: int) -> None:
    """Let there be as many classes as its network has outputs, unless the user says how many there are.

    A client need not have samples of the highest class.
    """
    if data.num_classes is None and 0 < data.splits.num_classes <= outputs:
        data._splits = replace(data.splits, num_classes=outputs)
        vars(data)["num_classes"] = outputs  # past the check that options are fixed by now


def as_one_of_many(of_one: Assignment, client: int, num_clients: int) -> Assignment:
    """What a single client holds, as that of one of many.

    Example:
        >>> alone = Assignment([np.arange(3)], [np.arange(3, 5)], "train", [np.ones(3, dtype=bool)])
        >>> [len(held) for held in as_one_of_many(alone, 1, 3).train]
        [0, 3, 0]
    """

    def among(parts: list[np.ndarray]) -> list[np.ndarray]:
        return [parts[0] if k == client else parts[0][:0] for k in range(num_clients)] if parts else []

    train, val, opted_in, own_test = map(among, (of_one.train, of_one.val, of_one.opted_in, of_one.own_test))
    return Assignment(train, val, of_one.val_split, opted_in, own_test)


def server_data(reports: Mapping[int, Mapping[str, Any]]) -> FederatedData:
    """Data for a server that has none: blank samples of the kind that clients have, and how many each has.

    Args:
        reports: What each client reports of its own: `train`, `opted_in`, `val` and `own_test` samples, and their
            `preprocessing`.
    """
    kept = reports[0]["preprocessing"]
    for k, one in reports.items():
        if not _is_same(one["preprocessing"], kept):
            raise ValueError(f"Samples of client {k} and of client 0 are not of one kind, or not normalised alike.")
    num_classes = max(one["preprocessing"]["num_classes"] for one in reports.values())
    data = placeholder_data({**kept, "num_classes": num_classes}, None)
    order = [reports[k] for k in sorted(reports)]

    def held(name: str) -> list[np.ndarray]:
        return [np.zeros(one[name], dtype=np.int64) for one in order]

    data._assignment = Assignment(
        train=held("train"),
        val=held("val"),
        val_split="train",
        opted_in=[np.arange(one["train"]) < one["opted_in"] for one in order],
        own_test=held("own_test") if any(one["own_test"] for one in order) else [],
    )
    data._resplit = (0, data._assignment)
    return data


def _is_same(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """Whether samples are of one kind and prepared alike."""
    is_one_kind = describe((a["inputs"], a["targets"])) == describe((b["inputs"], b["targets"]))
    by = [[one[name] for name in ("mean", "std", "unseen_clients")] for one in (a, b)]
    return is_one_kind and equal(*by)
