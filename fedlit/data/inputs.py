"""From samples as a data set holds them to what a network is given: scaled, seen by a client, augmented, normalised."""

from collections.abc import Callable, Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedlit.augment import Augmentation
from fedlit.data.normalisation import Normalisation, is_images
from fedlit.data.trees import Tree, told
from fedlit.partition import Partition


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
        self._check(example)

    def _check(self, example: Tree) -> None:
        is_tensor = isinstance(example, Tensor)
        if self.differ and not (is_tensor and example.ndim > 2):
            raise ValueError(
                f"`data.partition` changes how clients see images, but inputs are {told(example, of_many=True)}."
            )
        if self.augmentation and not is_tensor:
            raise ValueError(
                f"`data.augmentation` is for images in one tensor, but inputs are {told(example, of_many=True)}."
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

    def transform(self, client: int | None) -> Callable[[Tree, torch.Generator | None], Tree]:
        """`ready` for the batches of a client."""
        return lambda x, generator: self.ready(x, client, generator)

    def transform_read(self, owners: np.ndarray | int | None) -> Callable[[Tree, torch.Generator | None, Tensor], Tree]:
        """`ready` for batches that are read, by the positions of their samples.

        Args:
            owners: The client of each sample, ``[N]``, or of all; None if they see the same.
        """

        def ready(x: Tree, generator: torch.Generator | None, positions: Tensor) -> Tree:
            if not isinstance(owners, np.ndarray) or not self.differ:
                return self.ready(x, None if isinstance(owners, np.ndarray) else owners, generator)
            whose = torch.from_numpy(owners[positions.numpy()])
            seen = [self.ready(x[whose == k], int(k), generator) for k in whose.unique()]
            rows = [(whose == k).nonzero().flatten() for k in whose.unique()]
            return torch.cat(seen)[torch.cat(rows).argsort()]

        return ready
