"""Partitions around another: samples that come over time, and clients who see the same samples differently.

A client's own samples, for training and for evaluation, and its share of the pooled test set go through its view.

Invariants: one slice, or a skew that turns by 0 degrees and shifts no colours, is the base partition, bit for bit; the
slices of a client are disjoint, and together all that it holds.
"""

import copy
from abc import abstractmethod

import numpy as np

from fedlit.augment import Augmentation, Tint, Turn
from fedlit.bounds import check_count, check_kind, check_number, check_share
from fedlit.partition.base import Partition, require
from fedlit.partition.by_size import IID
from fedlit.rng import stream


class Wrapper(Partition):
    """A partition around another, to which it delegates what it does not override.

    Args:
        base: Assigns the samples.
    """

    @abstractmethod  # so that it is not offered as a partition
    def __init__(self, base: Partition) -> None:
        check_kind("base", base, Partition, "a partition")
        self.base = base
        self.resplit_every_round = base.resplit_every_round
        self.by_class = base.by_class
        self.by_owner = base.by_owner
        self.over_time = base.over_time
        self.column = base.column

    def around(self, base: Partition) -> "Wrapper":
        """The same around another partition."""
        other = copy.copy(self)
        other.base = base
        return other

    def assign(self, labels: np.ndarray, num_clients: int, num_classes: int, seed: int) -> list[np.ndarray]:
        return self.base.assign(labels, num_clients, num_classes, seed)

    def class_probabilities(self, class_sizes: np.ndarray, num_clients: int, seed: int) -> np.ndarray | None:
        return self.base.class_probabilities(class_sizes, num_clients, seed)

    def scaled(self, factor: float) -> "Wrapper":
        return self.around(self.base.scaled(factor))

    def for_samples(self, owners: np.ndarray) -> "Wrapper":
        return self.around(self.base.for_samples(owners))

    def owner_list(self, test: bool) -> list | None:
        return self.base.owner_list(test)

    def in_round(self, samples: np.ndarray, round: int) -> np.ndarray:
        return self.base.in_round(samples, round)

    def pixel_permutation(self, client: int, num_pixels: int, seed: int) -> np.ndarray | None:
        return self.base.pixel_permutation(client, num_pixels, seed)

    def view(self, client: int, seed: int) -> list[Augmentation]:
        return self.base.view(client, seed)


class OverTime(Wrapper):
    """In every round a client has the next slice of its training samples, in the order of the data set.

    After the last slice it is the first again. Validation samples are the same in all rounds.

    Args:
        slices: Parts of a client's samples, which differ by at most one sample; 1 is all of them in every round.
        base: Assigns the samples; IID by default.
    """

    def __init__(self, slices: int, base: Partition | None = None) -> None:
        super().__init__(IID() if base is None else base)
        self.slices = check_count("slices", slices)
        self.over_time = self.slices > 1 or self.over_time

    def in_round(self, samples: np.ndarray, round: int) -> np.ndarray:
        there = self.base.in_round(samples, round)
        message = f"`slices`={self.slices} needs as many training samples of every client that has any"
        require(len(samples) == 0 or len(samples) >= self.slices, f"{message}, one has {len(samples)}.")
        if round == 0:
            return there
        in_time = np.argsort(samples, kind="stable")
        mine = np.array_split(in_time, self.slices)[(round - 1) % self.slices]
        is_mine = np.zeros(len(samples), dtype=bool)
        is_mine[mine] = True
        return there & is_mine


MOST_CHANNELS = 4


class PermutedPixels(Wrapper):
    """Each client sees its images through a fixed random order of pixels of its own (FedFusion, user-specific).

    Args:
        base: Assigns the samples; IID by default.
    """

    def __init__(self, base: Partition | None = None) -> None:
        super().__init__(IID() if base is None else base)

    def pixel_permutation(self, client: int, num_pixels: int, seed: int) -> np.ndarray:
        return stream(seed, "pixels", client).permutation(num_pixels)


class FeatureSkew(Wrapper):
    """Each client sees its images turned, or in other colours: the labels are the same, the features are not.

    Args:
        rotations: Degrees, counter-clockwise, which repeat over clients: ``[0, 90, 180, 270]`` is four kinds of
            clients, ``[0]`` turns none. Multiples of 90 are exact, others interpolate.
        colour: A client's channels are shifted each by a number of its own, uniform in [-colour, colour] on the [0, 1]
            scale, and clipped to it; 0 shifts nothing.
        base: Assigns the samples; IID by default.
    """

    def __init__(
        self, rotations: list[float] | None = None, colour: float = 0.0, base: Partition | None = None
    ) -> None:
        super().__init__(IID() if base is None else base)
        check_kind("rotations", rotations or [], (list, tuple), "a list of degrees")
        require(rotations is None or len(rotations) > 0, "`rotations` must hold degrees, such as [0, 90], got none.")
        self.rotations = [check_number("rotations", degrees, -360, 360) for degrees in rotations or [0.0]]
        self.colour = check_share("colour", colour)
        idle = self.colour == 0 and rotations is None
        require(not idle, "`rotations` or `colour` must be given: `FeatureSkew` would change nothing.")

    def view(self, client: int, seed: int) -> list[Augmentation]:
        steps = self.base.view(client, seed)
        degrees = self.rotations[client % len(self.rotations)]
        if degrees % 360:
            steps = [*steps, Turn(degrees)]
        if self.colour > 0:
            shifts = stream(seed, "colours", client).uniform(-self.colour, self.colour, MOST_CHANNELS)
            steps = [*steps, Tint(shifts.tolist())]
        return steps
