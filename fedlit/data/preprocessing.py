"""From samples as a data set holds them to network inputs: scaled, as a client sees them, augmented, normalised."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor, nn

from fedlit.augment import Augmentation
from fedlit.data.assignment import Assignment
from fedlit.data.batches import Batches, Transform
from fedlit.data.items import Tree, describe, joined, mapped
from fedlit.data.splits import Part, Splits, StackedSamples, is_images, mean_std
from fedlit.partition import Partition
from fedlit.rng import generator

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData


Channels = float | list[float] | None
AT_ONCE = 256  # images that are looked at together
MOST_READY = 2**26  # numbers of a data set whose normalised samples are kept, too: 256 MB


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
        if mean is not None or std is not None:
            name = "std" if mean is None else "mean"
            kind = describe(x, of_many=True)
            raise ValueError(f"`data.{name}` is for images or features in one tensor, but inputs are {kind}.")
        return None
    channels = x.shape[1:2].numel()
    means = _per_channel("mean", splits.mean if mean is None else mean, channels)
    stds = _per_channel("std", splits.std if std is None else std, channels)
    if not means and not stds:
        return None
    dtype = torch.float64 if x.dtype == torch.float64 else torch.float32
    places = [1] * (x.ndim - 2)  # of a channel: rows and columns of an image, none of a feature
    mean_of = torch.tensor(means or [0.0], dtype=dtype).view(-1, *places)
    return Normalisation(mean_of, torch.tensor(stds or [1.0], dtype=dtype).view(-1, *places))


def _per_channel(name: str, given: float | Sequence[float], num_channels: int) -> list[float]:
    values = np.atleast_1d(given).tolist()
    if len(values) not in (0, 1, num_channels):
        raise ValueError(f"`data.{name}` must be one number or {num_channels}, one per channel, got {len(values)}.")
    return values


def measured_on_shared(splits: Splits, assignment: Assignment) -> Splits:
    """With mean and std of shared samples only, since all clients' inputs are normalised by them."""
    if not is_images(splits.train.example[0]):
        return splits
    shared = np.unique(np.concatenate([assignment.shared(k) for k in range(assignment.num_clients)]))
    part = splits.train.taken(shared if len(shared) else np.arange(len(splits.train)))
    images = [part.x] if isinstance(part, StackedSamples) else (x for x, _ in Batches(part, AT_ONCE))
    mean, std = mean_std(images)
    return replace(splits, mean=mean, std=std)


def with_censored_copies(splits: Splits, steps: Sequence[Augmentation], seed: int) -> Splits:
    """A censored copy of every training sample behind them all.

    What is random is drawn once and by the sample's place: an average of many copies would reveal the original.
    """
    part = splits.train
    if not isinstance(part, StackedSamples) or not isinstance(part.x, Tensor):
        kind = describe(part.example[0], of_many=True)
        raise ValueError(f"`data.censor` is for inputs in one tensor and in memory (`data.in_memory`), got {kind}.")
    draws = generator(seed, "censor")
    copies = []
    for x in part.x.split(AT_ONCE):
        copy = x.to(torch.float32).div_(255) if is_images(x) else x.clone()
        for step in steps:
            copy = step(copy, draws)
        copies.append(copy.mul(255).round_().clamp_(0, 255).to(torch.uint8) if is_images(x) else copy)
        if describe(copies[-1]) != describe(x):
            raise ValueError(f"`data.censor` must keep the kind of inputs, {describe(x)}, got {describe(copies[-1])}.")
    return replace(splits, train=StackedSamples(torch.cat([part.x, *copies]), joined([part.y, part.y])))


def prepared(
    x: Tensor,
    steps: Iterable[Augmentation],
    normalisation: Callable[[Tensor], Tensor] | None,
    permutation: Tensor | np.ndarray | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Inputs as a network is given them: images scaled to [0, 1], changed, normalised, and their pixels permuted.

    Random steps are left out without a generator.
    """
    if is_images(x):
        x = x.to(torch.float32).div_(255)
    for step in steps:
        if generator is not None or not step.random:
            x = step(x, generator)
    if normalisation is not None:
        x = normalisation(x)
    return x if permutation is None else x.flatten(2)[:, :, permutation].view_as(x)


class Inputs:
    """What is done to inputs before a network sees them; a tree of tensors is given as it is.

    Args:
        example: Inputs of one sample, ``[1, ...]``.
        partition: Clients may see the same image differently.
        seed: Of the partition.
        num_clients: How many there are.
        augmentation: Steps, random ones only in training.
        normalisation: Comes last.
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
        self._example = example
        self._views: dict[int, list[Augmentation]] = {}
        self._ready: list[tuple[StackedSamples, Normalisation | None, StackedSamples]] = []
        kind = describe(example, of_many=True)
        if self.differ and not (isinstance(example, Tensor) and example.ndim > 2):
            raise ValueError(f"`data.partition` changes how clients see images, but inputs are {kind}.")
        if self.augmentation and not isinstance(example, Tensor):
            raise ValueError(f"`data.augmentation` is for images in one tensor, but inputs are {kind}.")

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

    @cached_property
    def _num_pixels(self) -> int:
        """Of an image as it comes out of the steps."""
        return prepared(self._example, self.augmentation, None).shape[2:].numel()

    def steps(self, client: int | None) -> list[Augmentation]:
        """How a client sees every image, then the augmentation."""
        if client is None:
            return list(self.augmentation)
        if client not in self._views:
            self._views[client] = self.partition.view(client, self.seed)
        return [*self._views[client], *self.augmentation]

    def permutation(self, client: int | None) -> np.ndarray | None:
        """The order in which a client sees its pixels, if it is one of its own."""
        if client is None or not self.differ:
            return None
        return self.partition.pixel_permutation(client, self._num_pixels, self.seed)

    def change(self, x: Tree) -> bool:
        """Whether a network is given anything but the samples as they are."""
        if not isinstance(x, Tensor):
            return False
        return is_images(x) or bool(self.augmentation) or self.normalisation is not None or self.differ

    def ready(self, x: Tree, client: int | None, generator: torch.Generator | None = None) -> Tree:
        """Raw samples to network inputs; random augmentation only with a generator."""
        if not isinstance(x, Tensor):
            return x
        return prepared(x, self.steps(client), self.normalisation, self.permutation(client), generator)

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
        inputs: Of the data.
        client: Its view of images; None is none.
        dtype: That the network takes.
    """

    mean: Tensor | None
    std: Tensor | None
    permutation: Tensor | None

    def __init__(self, inputs: Inputs, client: int | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.steps = inputs.steps(client)
        self.dtype = dtype
        by = inputs.normalisation
        permutation = inputs.permutation(client)
        self.register_buffer("mean", None if by is None else by.mean.clone())
        self.register_buffer("std", None if by is None else by.std.clone())
        self.register_buffer("permutation", None if permutation is None else torch.as_tensor(permutation))

    def forward(self, x: Tensor) -> Tensor:
        normalisation = None if self.mean is None or self.std is None else Normalisation(self.mean, self.std)
        x = prepared(x, self.steps, normalisation, self.permutation)
        return x.to(self.dtype) if x.is_floating_point() else x


def kept_preprocessing(data: "FederatedData") -> dict[str, Any]:
    """What a checkpoint keeps so that its networks can be used without the data: plain values.

    `inputs` and `targets` are of one sample, with zeros for values.
    """
    by = data.inputs.normalisation
    x, y = data.splits.train.example
    return {
        "mean": None if by is None else by.mean.clone(),
        "std": None if by is None else by.std.clone(),
        "inputs": apply_to_collection(x, Tensor, torch.zeros_like),
        "targets": apply_to_collection(y, Tensor, torch.zeros_like),
        "num_classes": data.splits.num_classes,
        "num_clients": data.num_clients,
        "unseen_clients": data.unseen_clients,
    }


def prepare_as(data: "FederatedData", kept: Mapping[str, Any]) -> None:
    """Normalise data as those were that a checkpoint's networks learnt from, unless the user says how."""
    if data.mean is None and data.std is None:
        mean, std = kept["mean"], kept["std"]
        data.inputs.normalisation = None if mean is None else Normalisation(mean.clone(), std.clone())
