"""One client, as a method sees it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from fedlit.batches import Batches

if TYPE_CHECKING:
    from fedlit.data import FederatedData

Split = Literal["shared", "all"]


@dataclass(frozen=True)
class Client:
    """One client: its samples, and what a method may know of it.

    Attributes:
        id: From 0 to the number of clients minus one.
        round: The round of this visit, counted from 1.
        num_classes: Classes of its task.
        num_samples: Training samples, opted out or not.
        num_shared: Training samples that may influence what leaves the client.
    """

    id: int
    num_classes: int
    num_samples: int
    num_shared: int
    round: int = 0
    data: "FederatedData | None" = field(default=None, repr=False)

    def train_batches(self, generator: torch.Generator | None = None, split: Split = "shared") -> Batches:
        """Training batches: only samples that are shared, or all; shuffled and augmented by `generator`."""
        return self.data.train_batches(self.id, generator, split, self.round)

    @property
    def sees_the_same_inputs(self) -> bool:
        """Whether a training sample looks the same in every epoch, so that what is computed of it can be recorded."""
        return not any(step.random for step in self.data.augmentation)

    def val_batches(self) -> Batches:
        """The client's own validation samples, in a fixed order."""
        return self.data.val_batches([self.id], self.round)[0]
