"""From samples as a data set holds them to what a network is given: scaled, seen by a client, augmented, normalised."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from fedlit.augment import Augmentation
from fedlit.data.assignment import Assignment
from fedlit.data.batches import Transform
from fedlit.data.items import Tree, describe, mapped
from fedlit.data.splits import Part, Splits, StackedSamples, is_images, mean_std
from fedlit.partition import Partition

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData


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
                    f"`data.{name}` is for images or features in one tensor, but inputs are {describe(x, True)}."
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
    if isinstance(part, StackedSamples):
        return [part.x[index]]
    return (x for x, _ in part.taken(index).batches(AT_ONCE))


def _per_channel(name: str, given: Channels, own: tuple[float, ...], num_channels: int) -> list[float]:
    values = list(own)
    if given is not None:
        values = np.atleast_1d(given).tolist()
    if len(values) not in (0, 1, num_channels):
        raise ValueError(f"`data.{name}` must be one number or {num_channels}, one per channel, got {len(values)}.")
    return values


MOST_READY = 2**26  # numbers of a data set whose normalised samples are kept, too: 256 MB


class Inputs:
    """What is done to inputs before a network sees them.

    Images of one tensor are scaled to [0, 1] first; a tree of tensors is given as it is.

    Args:
        example: Inputs of one sample, ``[1, ...]``.
        partition: Clients may see the same image differently.
        seed: Of the partition.
        num_clients: How many there are.
        augmentation: Steps, random ones only in training.
        normalisation: What comes last.
    """

    def __init__(
        self,
        example: Tree,
        partition: Partition,
        seed: int,
        num_clients: int,
        augmentation: Sequence[Augmentation],
        normalisation: Normalisation | None,
    ) -> None:
        self.partition = partition
        self.seed = seed
        self.num_clients = num_clients
        self.augmentation = augmentation
        self.normalisation = normalisation
        self._views: dict[int, list[Augmentation]] = {}
        self._ready: list[tuple[StackedSamples, Normalisation | None, StackedSamples]] = []
        self._check(example)

    def _check(self, example: Tree) -> None:
        is_tensor = isinstance(example, Tensor)
        if self.differ and not (is_tensor and example.ndim > 2):
            raise ValueError(
                f"`data.partition` changes how clients see images, but inputs are {describe(example, of_many=True)}."
            )
        if self.augmentation and not is_tensor:
            raise ValueError(
                f"`data.augmentation` is for images in one tensor, but inputs are {describe(example, of_many=True)}."
            )

    @property
    def is_random(self) -> bool:
        """Whether a training sample is augmented otherwise in every epoch."""
        return any(step.random for step in self.augmentation)

    @cached_property
    def differ(self) -> bool:
        """Whether clients see the same image differently."""
        if self.partition.pixel_permutation(0, 1, 0) is not None:
            return True
        return any(self.partition.view(k, self.seed) for k in range(self.num_clients))

    def view(self, client: int) -> list[Augmentation]:
        """Steps through which a client sees every image."""
        if client not in self._views:
            self._views[client] = self.partition.view(client, self.seed)
        return self._views[client]

    def permutation(self, client: int, num_pixels: int) -> np.ndarray | None:
        """The order in which a client sees its pixels, if it is one of its own."""
        return self.partition.pixel_permutation(client, num_pixels, self.seed)

    def change(self, x: Tree) -> bool:
        """Whether a network is given anything but the samples as they are."""
        if not isinstance(x, Tensor):
            return False
        return is_images(x) or bool(self.augmentation) or self.normalisation is not None or self.differ

    def ready(self, x: Tree, client: int | None, generator: torch.Generator | None = None) -> Tree:
        """Raw samples to network inputs; random augmentation only with a generator."""
        if not isinstance(x, Tensor):
            return x
        if is_images(x):
            x = x.to(torch.float32).div_(255)
        if client is not None:
            for step in self.view(client):
                x = step(x, None)
        for step in self.augmentation:
            if generator is not None or not step.random:
                x = step(x, generator)
        if self.normalisation is not None:
            x = self.normalisation(x)
        if client is None or x.ndim < 2:
            return x
        permutation = self.permutation(client, x.shape[2:].numel())
        if permutation is None:
            return x
        return x.flatten(2)[:, :, permutation].view_as(x)

    def ready_samples(self, part: Part) -> StackedSamples | None:
        """Samples in memory as networks are given them, if that is always the same; made once, if there is room."""
        if not isinstance(part, StackedSamples):
            return None
        if not self.change(part.x):
            return part
        if self.is_random or self.differ or part.x.numel() > MOST_READY:
            return None
        for known, normalisation, ready in self._ready:
            if known is part and normalisation is self.normalisation:
                return ready
        ready = replace(part, x=self.ready(part.x, None))
        self._ready = [entry for entry in self._ready if entry[1] is self.normalisation]
        self._ready.append((part, self.normalisation, ready))
        return ready

    def transform(self, owners: np.ndarray | int | None, copy: bool = False) -> Transform:
        """`ready` for batches.

        Args:
            owners: The client of each sample, ``[N]``, or of all; None if they see the same.
            copy: Leave the samples as they are also where nothing else makes a copy of them.
        """
        each_by_owner = isinstance(owners, np.ndarray) and self.differ
        client = None if isinstance(owners, np.ndarray) else owners

        def transform(x: Tree, generator: torch.Generator | None, positions: Tensor) -> Tree:
            if copy:
                x = mapped(torch.clone, x)
            if each_by_owner:
                return self._ready_by_owner(x, np.asarray(owners)[positions.numpy()], generator)
            return self.ready(x, client, generator)

        return transform

    def _ready_by_owner(self, x: Tensor, owners: np.ndarray, generator: torch.Generator | None) -> Tensor:
        whose = torch.from_numpy(owners)
        seen = [self.ready(x[whose == k], int(k), generator) for k in whose.unique()]
        rows = [(whose == k).nonzero().flatten() for k in whose.unique()]
        return torch.cat(seen)[torch.cat(rows).argsort()]


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
