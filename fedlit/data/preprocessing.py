"""From samples as a data set holds them to what a network is given: as a module of its own, and in a checkpoint."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from fedlit.augment import Augmentation
from fedlit.data.normalisation import Normalisation, is_images

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData


class Preprocessing(nn.Module):
    """What an evaluation does with samples before the network: scaled, steps that are not random, normalised.

    Args:
        steps: How a client sees images, and augmentation that is not random.
        mean: Subtracted, ``[C, 1, 1]``; None leaves the inputs as they are.
        std: Divides, likewise.
        permutation: Of pixels, where clients see the same image differently.
        dtype: That the network takes.
    """

    def __init__(
        self,
        steps: Sequence[Augmentation],
        mean: Tensor | None,
        std: Tensor | None,
        permutation: Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        super().__init__()
        self.steps = list(steps)
        self.dtype = dtype
        self.mean: Tensor | None
        self.std: Tensor | None
        self.permutation: Tensor | None
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)
        self.register_buffer("permutation", permutation)

    def forward(self, x: Tensor) -> Tensor:
        if is_images(x):
            x = x.to(torch.float32).div(255)
        for step in self.steps:
            x = step(x, None)
        if self.mean is not None and self.std is not None:
            x = x.sub(self.mean).div(self.std)
        if self.permutation is not None:
            x = x.flatten(2)[:, :, self.permutation].view_as(x)
        return x.to(self.dtype) if x.is_floating_point() else x


def preprocessing(data: "FederatedData", client: int | None, dtype: torch.dtype) -> Preprocessing:
    """Of the data as they are evaluated; a client's own view of images is that client's alone."""
    inputs = data.inputs
    mean = None
    std = None
    if inputs.normalisation is not None:
        mean = inputs.normalisation.mean.clone()
        std = inputs.normalisation.std.clone()
    permutation = None
    steps = [step for step in inputs.augmentation if not step.random]
    if client is not None:
        steps = [*inputs.view(client), *steps]
    if client is not None and inputs.differ:  # then they are images
        drawn = inputs.permutation(client, data.splits.train.example[0].shape[2:].numel())
        if drawn is not None:
            permutation = torch.as_tensor(drawn)
    return Preprocessing(steps, mean, std, permutation, dtype)


def kept_preprocessing(data: "FederatedData") -> dict[str, Any]:
    """What a checkpoint holds, so that its networks can be used where the data are not: plain values.

    `inputs` and `targets` are of one sample, with zeros in place of what anybody holds.
    """
    normalisation = data.inputs.normalisation
    x, y = data.splits.train.example
    return {
        "mean": None if normalisation is None else normalisation.mean.clone(),
        "std": None if normalisation is None else normalisation.std.clone(),
        "inputs": apply_to_collection(x, Tensor, torch.zeros_like),
        "targets": apply_to_collection(y, Tensor, torch.zeros_like),
        "num_classes": data.splits.num_classes,
        "num_clients": data.num_clients,
        "unseen_clients": data.unseen_clients,
    }


def prepare_as(data: "FederatedData", kept: Mapping[str, Any]) -> None:
    """Normalise data as those were that a checkpoint's networks learnt from, unless the user says how."""
    if data.mean is not None or data.std is not None:
        return
    normalisation = None
    if kept["mean"] is not None:
        normalisation = Normalisation(kept["mean"].clone(), kept["std"].clone())
    data.inputs.normalisation = normalisation
