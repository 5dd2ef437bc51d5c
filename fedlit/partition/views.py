"""Clients who see the same samples differently: pixels in another order, images turned or in other colours.

A client's own samples, for training and for evaluation, and its share of the pooled test set go through its view.

Laws: turned by 0 degrees and without a shift of colours, `FeatureSkew` is its base, bit for bit.
"""

import numpy as np

from fedlit.augment import Augmentation, Tint, Turn
from fedlit.bounds import check_kind, check_number, check_share
from fedlit.dealing import require
from fedlit.partition.base import Partition, Wrapper
from fedlit.partition.by_size import IID
from fedlit.rng import stream

MOST_CHANNELS = 4


class PermutedPixels(Wrapper):
    """Each client sees its images through a fixed random order of pixels of its own (FedFusion, user-specific).

    Args:
        base: Who holds which samples; IID by default.
    """

    def __init__(self, base: Partition | None = None) -> None:
        super().__init__(IID() if base is None else base)

    def pixel_permutation(self, client: int, num_pixels: int, seed: int) -> np.ndarray:
        return stream(seed, "pixels", client).permutation(num_pixels)


class FeatureSkew(Wrapper):
    """Each client sees its images turned, or in other colours: the labels are the same, the features are not.

    Args:
        rotations: Degrees, counter-clockwise, which repeat over clients: ``[0, 90, 180, 270]`` is four kinds of
            clients, ``[0]`` turns nobody. Multiples of 90 are exact, others interpolate.
        colour: A client's channels are shifted each by a number of its own, uniform in [-colour, colour] on the [0, 1]
            scale, and clipped to it; 0 shifts nothing.
        base: Who holds which samples; IID by default.
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
