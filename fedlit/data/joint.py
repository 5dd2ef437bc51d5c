"""Several data sets in one federation: clients that differ in their task as well."""

from dataclasses import replace
from typing import Literal

import numpy as np
from torch import Tensor

from fedlit.data.assignment import Assignment
from fedlit.data.batches import Batches
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.data.items import describe, joined, listed
from fedlit.data.splits import Part, PublicPool, Splits, StackedSamples


class JointData(FederatedData):
    """The clients of several data sets, numbered on; inputs have one shape, classes are each data set's own.

    Batch sizes, augmentation and normalisation are those of the first data set.

    Args:
        parts: The data sets, each dealt out to its own clients.
        root: Folder of all data sets; each part's own by default.
        partition_seed: Seed of all parts' partitions; each part's own by default.
    """

    def __init__(self, parts: list[FederatedData], root: str | None = None, partition_seed: int | None = None) -> None:
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
            if partition_seed is not None:
                part.partition_seed = partition_seed

    def describe(self) -> str:
        return " + ".join(dict.fromkeys(part.describe() for part in self.parts))

    def _source(self) -> str:
        return "one of `data.parts`"

    def prepare_data(self) -> None:
        for part in self.parts:
            part.prepare_data()

    def setup(self, stage: str | None = None) -> None:
        if self._assignment is not None:
            return
        for part in self.parts:
            part.setup()
            if not isinstance(part.splits.train, StackedSamples) or not isinstance(part.splits.test, StackedSamples):
                raise ValueError("`data.parts` must be in memory; set their `in_memory` to true.")
        kinds = [describe(part.splits.train.x, of_many=True) for part in self.parts]
        if len(set(kinds)) > 1 or not isinstance(self.parts[0].images.train_x, Tensor):
            raise ValueError(f"`data.parts` must have inputs of one shape, in one tensor, got {listed(kinds)}.")
        every = [part.assignment for part in self.parts]
        if len({one.val_split for one in every}) > 1:
            raise ValueError("`data.parts` must take their validation samples from one source: all `test`, or none.")
        for option, given in (
            ("own_test", [one.own_test for one in every]),
            ("censor", [one.censored for one in every]),
        ):
            if len(set(map(bool, given))) > 1:
                raise ValueError(f"`data.parts` must all have `{option}`, or none.")
        self._splits = self._joined_splits()
        nothing = np.empty(0, np.int64)
        self._public_pool = PublicPool(self._splits.train.taken(nothing), nothing)
        self._inputs = self._make_inputs(self._splits)
        self._part_of = [part for part in self.parts for _ in range(part.num_clients)]
        self._assignment = self._joined_assignment(every)  # last: a refusal above leaves nothing set up

    def _joined_splits(self) -> Splits:
        every = [part.splits for part in self.parts]
        return replace(
            every[0],
            train=_end_to_end([splits.train for splits in every]),
            test=_end_to_end([splits.test for splits in every]),
            num_classes=max(splits.num_classes for splits in every),
            lowest_class=max(splits.lowest_class for splits in every),  # of one that does not begin at 0
        )

    @property
    def client_names(self) -> None:
        return None

    def _joined_assignment(self, every: list[Assignment]) -> Assignment:
        """The samples of all clients, numbered on from part to part."""

        def counted_on(name: Literal["train", "test"], held: list[list[np.ndarray]]) -> list[np.ndarray]:
            before = np.cumsum([0, *(len(part.splits.part(name)) for part in self.parts)])
            return [index + start for start, part in zip(before, held, strict=False) for index in part]

        val_split = every[0].val_split
        return Assignment(
            train=counted_on("train", [one.train for one in every]),
            val=counted_on(val_split, [one.val for one in every]),
            val_split=val_split,
            opted_in=[mask for one in every for mask in one.opted_in],
            own_test=counted_on("test", [one.own_test for one in every]),
            censored=counted_on("train", [one.censored for one in every]),
        )

    def client(self, id: int, round: int = 0) -> Client:
        return replace(super().client(id, round), num_classes=self._part_of[id].splits.num_classes)

    def class_probabilities(self, round: int = 0) -> np.ndarray | None:
        return None  # classes are each part's own

    def test_batches(self, client: int | None = None) -> Batches:
        if client is None:
            return super().test_batches()
        return self._part_of[client].test_batches()


def _end_to_end(parts: list[Part]) -> StackedSamples:
    return StackedSamples(joined([part.x for part in parts]), joined([part.y for part in parts]))
