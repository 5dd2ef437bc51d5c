"""One client, as a method sees it."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch

from fedlit.data.batches import Batches

if TYPE_CHECKING:
    from fedlit.data.federated import FederatedData

Samples = Literal["opted_in", "all", "public"]
Public = Literal["no", "inputs", "labels"]
SERVER = -1  # stands where a client's id would


@dataclass(frozen=True)
class Client:
    """One client: its samples, and what a method may know of it.

    Attributes:
        id: From 0 to the number of clients minus one.
        round: The round, counted from 1.
        samples: What is trained on in this round: `opted_in` samples, `all`, or those of the `public` pool.
        num_classes: Classes of its task; 0 if targets are no classes.
        num_samples: Training samples, opted out or not.
        num_opted_in: Training samples that may influence what leaves the client.
        data: The federation's, of which its batches are taken.
    """

    id: int
    num_classes: int
    num_samples: int
    num_opted_in: int
    round: int = 0
    samples: Samples = "opted_in"
    data: "FederatedData" = field(repr=False, kw_only=True)

    def train_batches(
        self, generator: torch.Generator | None = None, samples: Samples | None = None, public: Public = "no"
    ) -> Batches:
        """Training batches of this round, or of the `samples` that are named; shuffled and augmented by `generator`.

        With `public: inputs` the public pool is mixed in, with target -1; `samples: public` are the pool alone.
        """
        chosen = samples or self.samples
        if chosen == "public":
            return self.public_batches(generator, public)
        return self.data.train_batches(self.id, generator, chosen, self.round, public=public != "no")

    def public_batches(self, generator: torch.Generator | None = None, public: Public = "inputs") -> Batches:
        """Batches of the public pool; every target is -1, unless `public` is `labels`."""
        return self.data.public_batches(generator, labels=public == "labels")

    @property
    def sees_the_same_inputs(self) -> bool:
        """Whether a training sample looks the same in every epoch, so that what is computed of it can be recorded."""
        return not self.data.inputs_vary

    def labels(self, samples: Samples | None = None) -> torch.Tensor:
        """The class of each training sample of this round, or of the `samples` that are named, ``[N]``."""
        if not self.num_classes:
            raise ValueError("These data have no classes: their targets are something else.")
        held = self.data.held(self.id, samples or self.samples, self.round)
        return torch.from_numpy(self.data.labels("train")[held])

    def class_shares(self) -> torch.Tensor:
        """Fraction of each class among its opted-in samples, ``[C]``; private, never uploaded as it is."""
        y = self.labels("opted_in")
        return torch.bincount(y, minlength=self.num_classes) / max(len(y), 1)

    def class_probabilities(self) -> torch.Tensor:
        """Those that the partition draws its classes by, ``[C]``; the shares that it holds where none are known."""
        known = self.data.class_probabilities(self.round)
        if known is None:
            return self.class_shares()
        return torch.from_numpy(known[self.id]).float()

    def val_batches(self) -> Batches:
        """The client's own validation samples, in a fixed order."""
        batches, _ = self.data.val_batches([self.id], self.round)
        return batches


@dataclass(frozen=True)
class Server(Client):
    """The server when it trains: it has the public pool, and no samples of its own.

    Attributes:
        limit: Only so many samples of the pool, in a development run.
    """

    limit: int | None = None

    def train_batches(
        self, generator: torch.Generator | None = None, samples: Samples | None = None, public: Public = "inputs"
    ) -> Batches:
        """Batches of the public pool; every target is -1, unless `public` is `labels`."""
        return self.public_batches(generator, public).first(self.limit)

    def val_batches(self) -> Batches:
        """The validation samples of all clients that may train, in a fixed order."""
        seen = range(self.data.num_clients - self.data.unseen_clients)
        batches, _ = self.data.val_batches(seen, self.round)
        return batches.first(self.limit)
