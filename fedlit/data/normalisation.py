"""Inputs around 0: what is subtracted from each channel, and what divides it."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedlit.data.assignment import Assignment
from fedlit.data.datasets import Images, mean_std

Channels = float | list[float] | None


@dataclass(frozen=True, eq=False)
class Normalisation:
    """``(x - mean) / std``, both ``[C, 1, 1]`` (``[D]`` of features without places), or of one number for all."""

    mean: Tensor
    std: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x.sub(self.mean.to(x.device)).div_(self.std.to(x.device))


def normalisation(images: Images, mean: Channels, std: Channels) -> Normalisation | None:
    """As the user has it, else as the data set has it; None leaves features as they are."""
    shape = images.train_x.shape[1:]
    num_channels = shape[0] if shape else 1
    means = _per_channel("mean", mean, images.mean, num_channels)
    stds = _per_channel("std", std, images.std, num_channels)
    if min(stds, default=1) <= 0:
        raise ValueError(f"`data.std` must be above 0, got {std}.")
    if not means and not stds:
        return None
    places = [1] * (len(shape) - 1)  # of a channel: rows and columns of an image, none of a feature
    mean_of = torch.tensor(means or [0.0]).view(-1, *places)
    std_of = torch.tensor(stds or [1.0]).view(-1, *places)
    return Normalisation(mean_of, std_of)


def measured_on_opted_in(images: Images, assignment: Assignment) -> Images:
    """With mean and std of the opted-in samples: no other may shape what others' networks see."""
    held = zip(assignment.train, assignment.opted_in, strict=True)
    opted_in = np.unique(np.concatenate([train[mask] for train, mask in held]))
    x = images.train_x
    if len(opted_in):
        x = x[opted_in]
    mean, std = mean_std(x)
    return replace(images, mean=mean, std=std)


def _per_channel(name: str, given: Channels, own: tuple[float, ...], num_channels: int) -> list[float]:
    values = list(own)
    if given is not None:
        values = np.atleast_1d(given).tolist()
    if len(values) not in (0, 1, num_channels):
        raise ValueError(f"`data.{name}` must be one number or {num_channels}, one per channel, got {len(values)}.")
    return values
