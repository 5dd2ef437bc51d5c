"""Inputs around 0: what is subtracted from each channel, and what divides it."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from fedlit.data.assignment import Assignment
from fedlit.data.parts import Part, Splits, Stacked
from fedlit.data.trees import Tree, told

Channels = float | list[float] | None
AT_ONCE = 256  # images that are looked at together


@dataclass(frozen=True, eq=False)
class Normalisation:
    """``(x - mean) / std``, both ``[C, 1, 1]`` (``[D]`` of features without places), or of one number for all."""

    mean: Tensor
    std: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return x.sub(self.mean.to(x.device)).div_(self.std.to(x.device))


def normalisation(splits: Splits, mean: Channels, std: Channels) -> Normalisation | None:
    """As the user has it, else as the data set has it; None leaves features as they are."""
    x = splits.train.example[0]
    if not isinstance(x, Tensor) or not (is_images(x) or x.is_floating_point()):
        for name, given in (("mean", mean), ("std", std)):
            if given is not None:
                raise ValueError(
                    f"`data.{name}` is for images or features in one tensor, but inputs are {told(x, True)}."
                )
        return None
    shape = x.shape[1:]
    num_channels = shape[0] if shape else 1
    means = _per_channel("mean", mean, splits.mean, num_channels)
    stds = _per_channel("std", std, splits.std, num_channels)
    if min(stds, default=1) <= 0:
        raise ValueError(f"`data.std` must be above 0, got {std}.")
    if not means and not stds:
        return None
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    places = [1] * (len(shape) - 1)  # of a channel: rows and columns of an image, none of a feature
    mean_of = torch.tensor(means or [0.0], dtype=dtype).view(-1, *places)
    std_of = torch.tensor(stds or [1.0], dtype=dtype).view(-1, *places)
    return Normalisation(mean_of, std_of)


def is_images(x: Tree) -> bool:
    """Whether inputs are uint8 images ``[N, C, H, W]``, which are scaled to [0, 1]."""
    return isinstance(x, Tensor) and x.dtype == torch.uint8 and x.ndim == 4


def measured_on_opted_in(splits: Splits, assignment: Assignment) -> Splits:
    """With mean and std of the opted-in samples: no other may shape what others' networks see."""
    if not is_images(splits.train.example[0]):
        return splits
    held = zip(assignment.train, assignment.opted_in, strict=True)
    opted_in = np.unique(np.concatenate([train[mask] for train, mask in held]))
    if not len(opted_in):
        opted_in = np.arange(len(splits.train))
    mean, std = mean_std(_inputs(splits.train, opted_in))
    return replace(splits, mean=mean, std=std)


def _inputs(part: Part, index: np.ndarray) -> Iterable[Tensor]:
    if isinstance(part, Stacked):
        return [part.x[index]]
    return (x for x, _ in part.batches(index, AT_ONCE))


def mean_std(images: Iterable[Tensor]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Of each channel of uint8 images, ``[N, C, H, W]`` each, on the [0, 1] scale; empty for anything else."""
    counts: Tensor | None = None
    for x in images:
        if not is_images(x):
            return (), ()
        # How often each of the 256 levels occurs, [C, 256], gives both without a float copy of the images.
        found = torch.stack([torch.bincount(channel.flatten(), minlength=256) for channel in x.unbind(1)])
        counts = found if counts is None else counts + found
    if counts is None:
        return (), ()
    shares = counts.double() / int(counts[0].sum())
    levels = torch.arange(256, dtype=torch.float64) / 255
    mean = shares @ levels
    std = (shares * (levels - mean[:, None]) ** 2).sum(dim=1).sqrt()
    std[std == 0] = 1.0  # a constant channel becomes 0, not 0 / 0
    return tuple(mean.tolist()), tuple(std.tolist())


def _per_channel(name: str, given: Channels, own: tuple[float, ...], num_channels: int) -> list[float]:
    values = list(own)
    if given is not None:
        values = np.atleast_1d(given).tolist()
    if len(values) not in (0, 1, num_channels):
        raise ValueError(f"`data.{name}` must be one number or {num_channels}, one per channel, got {len(values)}.")
    return values
