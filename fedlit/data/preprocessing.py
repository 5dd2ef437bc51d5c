"""From samples as a data set holds them to what a network is given, as a module of its own."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from fedlit.augment import Augmentation
from fedlit.data.normalisation import is_images

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
        return x.to(self.dtype)


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
