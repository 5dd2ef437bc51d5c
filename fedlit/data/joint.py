"""Several data sets in one federation: clients that differ in their task as well."""

from dataclasses import replace

import numpy as np
from torch import Tensor

from fedlit.data.assignment import Assignment
from fedlit.data.batches import Batches
from fedlit.data.client import Client
from fedlit.data.federated import FederatedData
from fedlit.data.items import describe, joined
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
        for part in self.parts:
            if not isinstance(part.splits.train, StackedSamples) or not isinstance(part.splits.test, StackedSamples):
                raise ValueError("`data.parts` must be in memory; set their `in_memory` to true.")
            if not isinstance(part.splits.train.x, Tensor):
                kind = describe(part.splits.train.x, of_many=True)
                raise ValueError(f"`data.parts` must have inputs in one tensor, got {kind}.")
        shapes = [list(part.images.train_x.shape[1:]) for part in self.parts]
        if any(shape != shapes[0] for shape in shapes):
            raise ValueError(f"`data.parts` must have inputs of one shape, got {shapes}.")
        if len({part.assignment.val_split for part in self.parts}) > 1:
            raise ValueError("`data.parts` must take their validation samples from one source: all `test`, or none.")
        if len({bool(part.assignment.own_test) for part in self.parts}) > 1:
            raise ValueError("`data.parts` must all have `own_test`, or none.")
        splits = self._joined_splits()
        self._splits = splits
        nobody = np.empty(0, np.int64)
        self._public_pool = PublicPool(splits.train.taken(nobody), nobody)
        self._inputs = self._make_inputs(splits)
        self._part_of: list[FederatedData] = []
        for part in self.parts:
            self._part_of += [part] * part.num_clients
        self._assignment = self._joined_assignment()  # last: a refusal above leaves nothing set up

    def _joined_splits(self) -> Splits:
        every = [part.splits for part in self.parts]
        train = _end_to_end([splits.train for splits in every])
        test = _end_to_end([splits.test for splits in every])
        num_classes = max(splits.num_classes for splits in every)
        lowest_class = max(splits.lowest_class for splits in every)  # of one that does not begin at 0, if there is one
        return replace(every[0], train=train, test=test, num_classes=num_classes, lowest_class=lowest_class)

    @property
    def client_names(self) -> None:
        return None

    def _joined_assignment(self) -> Assignment:
        """Everybody's samples, counted on from part to part."""
        val_split = self.parts[0].assignment.val_split
        train: list[np.ndarray] = []
        val: list[np.ndarray] = []
        opted_in: list[np.ndarray] = []
        own_test: list[np.ndarray] = []
        censored: list[np.ndarray] = []
        has_copies = any(part.assignment.censored for part in self.parts)
        train_before = 0
        val_before = 0
        test_before = 0
        for part in self.parts:
            train += [index + train_before for index in part.assignment.train]
            val += [index + val_before for index in part.assignment.val]
            opted_in += part.assignment.opted_in
            if has_copies:
                copies = part.assignment.censored or [np.empty(0, np.int64)] * part.num_clients
                censored += [index + train_before for index in copies]
            own_test += [index + test_before for index in part.assignment.own_test]
            train_before += len(part.splits.train)
            val_before += len(part.splits.part(val_split))
            test_before += len(part.splits.test)
        return Assignment(train, val, val_split, opted_in, own_test, censored)

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
