"""Several data sets in one federation: clients that differ in their task as well."""

from dataclasses import replace

import numpy as np
import torch

from fedlit.data.assignment import Assignment
from fedlit.data.batches import Batches
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData

ARRAYS = ("train_x", "train_y", "test_x", "test_y")


class JointData(FederatedData):
    """The clients of several data sets, numbered on; inputs have one shape, classes are each data set's own.

    Batch sizes, augmentation and normalisation are those of the first data set.

    Args:
        parts: The data sets, each dealt out to its own clients.
        root: Folder of all data sets; each part's own by default.
    """

    def __init__(self, parts: list[FederatedData], root: str | None = None) -> None:
        if not parts:
            raise ValueError("`data.parts` must name at least one data set, got none.")
        first = parts[0]
        super().__init__(
            num_clients=sum(part.num_clients for part in parts),
            batch_size=first.batch_size,
            drop_last=first.drop_last,
            augmentation=first.augmentation,
            mean=first.mean,
            std=first.std,
            eval_batch_size=first.eval_batch_size,
        )
        self.parts = parts
        for part in parts:
            part.root = root or part.root

    def prepare_data(self) -> None:
        for part in self.parts:
            part.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        if self.images is not None:
            return
        for part in self.parts:
            part.setup()
        shapes = [list(part.images.train_x.shape[1:]) for part in self.parts]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"`data.parts` must have inputs of one shape, got {shapes}.")
        if any(part.assignment.val_split != self.parts[0].assignment.val_split for part in self.parts):
            raise ValueError("`data.parts` must take their validation samples from one source: all `test`, or none.")
        joined = {name: torch.cat([getattr(part.images, name) for part in self.parts]) for name in ARRAYS}
        most = max(part.images.num_classes for part in self.parts)
        self.images = replace(self.parts[0].images, **joined, num_classes=most)
        self._set_normalisation()
        self.assignment = self._joined_assignment()
        self._part_of = [part for part in self.parts for _ in range(part.num_clients)]

    def _joined_assignment(self) -> Assignment:
        train_sizes = np.cumsum([0, *(len(part.images.train_y) for part in self.parts)])
        val_split = self.parts[0].assignment.val_split
        val_sizes = train_sizes
        if val_split == "test":
            val_sizes = np.cumsum([0, *(len(part.images.test_y) for part in self.parts)])
        return Assignment(
            train=[i + n for part, n in zip(self.parts, train_sizes, strict=False) for i in part.assignment.train],
            val=[i + n for part, n in zip(self.parts, val_sizes, strict=False) for i in part.assignment.val],
            val_split=val_split,
            opted_in=[mask for part in self.parts for mask in part.assignment.opted_in],
        )

    def client(self, id: int, round: int = 0) -> Client:
        return replace(super().client(id, round), num_classes=self._part_of[id].images.num_classes)

    def test_batches(self, client: int | None = None) -> Batches:
        return super().test_batches() if client is None else self._part_of[client].test_batches()
