"""Data of a checkpoint: no samples, but their kind, so that its networks can be used where the data are not."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from fedlit.data.federated import FederatedData
from fedlit.data.preprocessing import prepare_as
from fedlit.partition import IID

EACH = 2  # blank samples of a client, one of them to validate on


def stand_in(kept: Mapping[str, Any], like: FederatedData | None) -> FederatedData:
    """Data of blank samples that are made ready as those were that a checkpoint's networks learnt from.

    Args:
        kept: By `kept_preprocessing`.
        like: As the user has them; their samples are not looked at.
    """
    if not isinstance(kept["inputs"], Tensor) or not isinstance(kept["targets"], Tensor):
        raise ValueError("samples that are no single tensors cannot be stood in for.")
    if like is not None and like.pixels_differ:
        raise ValueError("clients see pixels in an order of their own, which only the data tell.")
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
    data.is_stand_in = True
    return data


def _blank(kept: Mapping[str, Any], number: int) -> TensorDataset:
    """So many samples of zeros; one is of the last class, by which classes are counted."""
    x = kept["inputs"].expand(number, *kept["inputs"].shape[1:]).clone()
    y = kept["targets"].expand(number, *kept["targets"].shape[1:]).clone()
    if kept["num_classes"]:
        y[0] = kept["num_classes"] - 1
    return TensorDataset(x, y)


def noise_like(x: Tensor) -> Tensor:
    """Inputs of the same kind, drawn at random: of blank ones, networks would all say the same."""
    draw = torch.Generator().manual_seed(0)
    if x.dtype == torch.uint8:
        return torch.randint(0, 256, x.shape, generator=draw).to(torch.uint8)
    return torch.randn(x.shape, generator=draw).to(x.dtype) if x.is_floating_point() else x
