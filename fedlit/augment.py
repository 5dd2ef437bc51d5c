"""Augmentation of a batch, with one draw per image.

A callable ``(x, generator) -> x`` on images ``[N, C, H, W]``, float in [0, 1], before
normalisation. torchvision's v2 transforms make one draw for a whole batch and are slow image by
image; here every image has its own draw, and all draws come from the CPU ``generator`` that is
passed in. List augmentations in the order in which they should apply.

Invariants: ``Crop(0)``, ``Flip(0)``, ``Affine(0, 0)``, ``Colour()``, ``Noise(0)``, ``PadEdge(0)``, ``Pixelate(1)``
and, on a square, ``ResizedCrop((1, 1), (1, 1))`` change nothing; nor do ``Turn(0)`` and ``Tint([0])``, which draw
nothing.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from fedlit.bounds import LARGEST, check_choice, check_count, check_kind, check_number, check_share

MOST_PADDING = 1000  # pixels on each side


class Augmentation(ABC):
    """What an augmentation promises: whether it draws at random, and the image size that it returns."""

    random: bool = True

    @abstractmethod
    def __call__(self, x: Tensor, generator: Generator | None) -> Tensor:
        """Augment ``x``, ``[N, C, H, W]``; where nothing is random the generator may be None."""

    def output_size(self, size: int) -> int:
        """Height (or width) that comes out when ``size`` goes in."""
        return size


class Crop(Augmentation):
    """Pad with black and crop back to the old size at a random place.

    Args:
        padding: Pixels added on each side; 0 changes nothing.
    """

    def __init__(self, padding: int = 4) -> None:
        check_count("padding", padding, least=0, most=MOST_PADDING)
        self.padding = padding

    def __call__(self, x: Tensor, generator: Generator | None) -> Tensor:
        n, _, h, w = _image_shape(x)
        top, left = torch.randint(2 * self.padding + 1, (2, n), generator=generator).to(x.device)
        return crop(F.pad(x, [self.padding] * 4), top, left, h, w)


class Flip(Augmentation):
    """Mirror left and right.

    Args:
        p: Probability for each image; 0 changes nothing, 1 mirrors all.
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = check_share("p", p)

    def __call__(self, x: Tensor, generator: Generator | None) -> Tensor:
        n = _image_shape(x)[0]
        mirrored = torch.rand(n, 1, 1, 1, generator=generator) < self.p
        return torch.where(mirrored.to(x.device), x.flip(-1), x)


class Affine(Augmentation):
    """Rotate about the centre and shift, with bilinear interpolation.

    Args:
        degrees: The angle is uniform in [-degrees, degrees].
        shift: The shifts are uniform in [-shift, shift], as fractions of the width and of the
            height.
        fill: What comes in at the sides: the nearest pixel of the image (``border``, as in Keras)
            or black (``zeros``).
    """

    def __init__(self, degrees: float = 0.0, shift: float = 0.0, fill: Literal["zeros", "border"] = "border") -> None:
        check_number("degrees", degrees, 0, 180)
        check_share("shift", shift)
        check_choice("fill", fill, Literal["zeros", "border"])
        self.degrees = degrees
        self.shift = shift
        self.fill = fill

    def __call__(self, x: Tensor, generator: Generator | None) -> Tensor:
        n = _image_shape(x)[0]
        angle, right, down = (2 * torch.rand(3, n, generator=generator) - 1).to(x)
        radians = math.radians(self.degrees) * angle
        return rotate_shift(x, radians, self.shift * right, self.shift * down, self.fill)


class ResizedCrop(Augmentation):
    """Crop a box of random area and shape and enlarge it to the old size: torchvision's ``RandomResizedCrop``.

    Args:
        scale: The area of the box is uniform in this range, as a fraction of the image.
        ratio: The logarithm of width / height is uniform between the logarithms of these two.
    """

    def __init__(self, scale: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (0.75, 1.3333)) -> None:
        _check_range("scale", scale, is_positive=True, most=1.0)
        _check_range("ratio", ratio, is_positive=True)
        self.scale = scale
        self.ratio = ratio

    def __call__(self, x: Tensor, generator: Generator | None) -> Tensor:
        n, _, h, w = _image_shape(x)
        top, left, height, width = self.boxes(n, h, w, generator).to(x.device)
        return resize_boxes(x, top, left, height, width)

    def boxes(self, n: int, h: int, w: int, generator: Generator | None, tries: int = 10) -> Tensor:
        """Top, left, height and width ``[4, n]`` of one box per image.

        The first of the tries that fits into the image counts; if none does, the largest central
        box in ``ratio``.
        """
        draws = torch.rand(4, tries, n, generator=generator, dtype=torch.float64)  # float32 could round an offset up
        smallest, largest = self.scale
        area = h * w * (smallest + (largest - smallest) * draws[0])
        low = math.log(self.ratio[0])
        high = math.log(self.ratio[1])
        ratio = torch.exp(low + (high - low) * draws[1])
        height = (area / ratio).sqrt().round()
        width = (area * ratio).sqrt().round()
        top = (draws[2] * (h - height + 1)).floor()
        left = (draws[3] * (w - width + 1)).floor()
        fits = (height >= 1) & (height <= h) & (width >= 1) & (width <= w)
        first = fits.int().argmax(dim=0, keepdim=True)
        drawn = torch.stack([top, left, height, width]).gather(1, first.expand(4, 1, n))[:, 0]
        return torch.where(fits.any(dim=0), drawn.long(), self._central_box(h, w)[:, None])

    def _central_box(self, h: int, w: int) -> Tensor:
        nearest = min(max(w / h, self.ratio[0]), self.ratio[1])
        height = max(1, min(h, round(w / nearest)))
        width = max(1, min(w, round(h * nearest)))
        return torch.tensor([(h - height) // 2, (w - width) // 2, height, width])


class Colour(Augmentation):
    """Change the colours, in the order of the arguments, each as its authors do.

    Keras clips a channel shift to the range of the image. TensorFlow clips neither brightness nor
    contrast, so the result may leave [0, 1]: `Standardise` or the data's normalisation follow anyway.

    Args:
        shift: Added to each image: uniform in [-shift, shift], then clipped to the image's own range
            (Keras' channel shift).
        brightness: Added to each image: uniform in [-brightness, brightness].
        contrast: Distances from the channel's mean are multiplied by a factor per image, uniform in
            this range.
        per_channel: Draw a shift for each channel of an image, in place of one for all.
        clamp: Clamp the result to [0, 1], so that it stays an image.
    """

    def __init__(
        self,
        shift: float = 0.0,
        brightness: float = 0.0,
        contrast: tuple[float, float] | None = None,
        per_channel: bool = False,
        clamp: bool = False,
    ) -> None:
        check_share("shift", shift)
        check_share("brightness", brightness)
        if contrast is not None:
            _check_range("contrast", contrast, is_positive=False)
        self.shift = shift
        self.brightness = brightness
        self.contrast = contrast or (1.0, 1.0)
        self.per_channel = per_channel
        self.clamp = clamp

    def __call__(self, x: Tensor, generator: Generator | None) -> Tensor:
        n, c, _, _ = _image_shape(x)
        draws = torch.rand(n, c + 2, 1, 1, generator=generator).to(x)
        if self.shift > 0:
            shifts = draws[:, :c] if self.per_channel else draws[:, :1]
            shifted = x + self.shift * (2 * shifts - 1)
            every = (1, 2, 3)
            x = shifted.maximum(x.amin(every, keepdim=True)).minimum(x.amax(every, keepdim=True))
        x = x + self.brightness * (2 * draws[:, c : c + 1] - 1)
        factor = self.contrast[0] + (self.contrast[1] - self.contrast[0]) * draws[:, c + 1 :]
        mean = x.mean(dim=(2, 3), keepdim=True)
        x = torch.lerp(mean, x, factor)
        return x.clamp(0.0, 1.0) if self.clamp else x


class Standardise(Augmentation):
    """Give each image mean 0 and standard deviation 1: ``(x - mean) / max(std, 1 / sqrt(CHW))``, as TensorFlow does.

    The result leaves [0, 1], so this comes last.
    """

    random = False

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        _, c, h, w = _image_shape(x)
        centred = x - x.mean(dim=(1, 2, 3), keepdim=True)
        std = centred.square().mean(dim=(1, 2, 3), keepdim=True).sqrt()  # torch.std warns if a client has no samples
        return centred / std.clamp(min=(c * h * w) ** -0.5)


class Pixelate(Augmentation):
    """Every block of pixels becomes its mean, as a censored face does.

    Args:
        block: Pixels of a side; 1 changes nothing, as large as the image leaves its mean alone.
    """

    random = False

    def __init__(self, block: int) -> None:
        self.block = check_count("block", block)

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        _, _, h, w = _image_shape(x)
        means = F.avg_pool2d(x, self.block, ceil_mode=True)
        blocks = means.repeat_interleave(self.block, dim=2).repeat_interleave(self.block, dim=3)
        return blocks[:, :, :h, :w]


class Noise(Augmentation):
    """Add normal noise, and clip to [0, 1].

    Args:
        std: Standard deviation on the [0, 1] scale; 0 changes nothing.
    """

    def __init__(self, std: float) -> None:
        self.std = check_number("std", std, least=0)

    def __call__(self, x: Tensor, generator: Generator | None) -> Tensor:
        noise = torch.randn(_image_shape(x), generator=generator).to(x)
        return (x + self.std * noise).clamp(0.0, 1.0)


class PadEdge(Augmentation):
    """Enlarge the image by repeating its border pixels; 2 makes MNIST's 28 pixels LeNet's 32.

    Args:
        padding: Pixels added on each side; 0 changes nothing.
    """

    random = False

    def __init__(self, padding: int = 2) -> None:
        check_count("padding", padding, least=0, most=MOST_PADDING)
        self.padding = padding

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        _image_shape(x)
        return F.pad(x, [self.padding] * 4, mode="replicate")

    def output_size(self, size: int) -> int:
        return size + 2 * self.padding


class Turn(Augmentation):
    """Turn every image about its centre by the same angle; what comes in at the sides is black.

    Args:
        degrees: Counter-clockwise. Multiples of 90 move pixels of a square image, all else interpolates.
    """

    random = False

    def __init__(self, degrees: float) -> None:
        self.degrees = check_number("degrees", degrees, -360, 360)

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        _, _, h, w = _image_shape(x)
        quarters, rest = divmod(self.degrees % 360, 90)
        if rest == 0 and (h == w or quarters % 2 == 0):
            return x.rot90(int(quarters), (2, 3))
        radians = x.new_full((len(x),), math.radians(self.degrees))
        still = torch.zeros_like(radians)
        return rotate_shift(x, radians, still, still, fill="zeros")


class Tint(Augmentation):
    """Shift every channel by a number of its own, and clip to [0, 1].

    Args:
        shifts: One for each channel; those for more channels than an image has are left over.
    """

    random = False

    def __init__(self, shifts: list[float]) -> None:
        self.shifts = [check_number("shifts", shift, -1, 1) for shift in shifts]

    def __call__(self, x: Tensor, generator: Generator | None = None) -> Tensor:
        channels = _image_shape(x)[1]
        if channels > len(self.shifts):
            raise ValueError(f"`shifts` must have one number for each of {channels} channels, got {len(self.shifts)}.")
        return (x + x.new_tensor(self.shifts[:channels]).view(-1, 1, 1)).clamp(0.0, 1.0)


def crop(x: Tensor, top: Tensor, left: Tensor, h: int, w: int) -> Tensor:
    """``x[i, :, top[i] : top[i] + h, left[i] : left[i] + w]`` for each image ``i``, ``[N, C, h, w]``."""
    windows = x.unfold(2, h, 1).unfold(3, w, 1)  # a view; indexing it copies each image once
    return windows[torch.arange(len(x), device=x.device), :, top, left]


def rotate_shift(x: Tensor, radians: Tensor, right: Tensor, down: Tensor, fill: str = "border") -> Tensor:
    """Rotate image ``i`` counter-clockwise by ``radians[i]``, then move it by fractions of its width and height.

    The output at ``o`` is the input at ``R (o - t)``, in pixels from the centre: Keras' order.
    """
    _, _, h, w = x.shape
    cos = radians.cos()
    sin = radians.sin()
    # affine_grid measures in half widths and half heights: without h / w a rotation would shear an oblong image.
    across = torch.stack([cos, -sin * h / w, -2 * (cos * right - sin * down * h / w)], dim=1)
    along = torch.stack([sin * w / h, cos, -2 * (sin * right * w / h + cos * down)], dim=1)
    grid = F.affine_grid(torch.stack([across, along], dim=1), list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=fill, align_corners=False)


def resize_boxes(x: Tensor, top: Tensor, left: Tensor, height: Tensor, width: Tensor) -> Tensor:
    """Enlarge one box of each image to ``[H, W]``: bilinear, as ``F.interpolate`` of the box alone."""
    n, _, h, w = x.shape

    def places(start: Tensor, length: Tensor, size: int) -> Tensor:
        inside = (torch.arange(size, device=x.device) + 0.5) * length[:, None] / size - 0.5
        inside = inside.clamp(min=0).minimum(length[:, None] - 1)  # pixels outside the box must not bleed in
        return ((2 * (start[:, None] + inside) + 1) / size - 1).to(x.dtype)

    rows = places(top, height, h)[:, :, None].expand(n, h, w)
    columns = places(left, width, w)[:, None, :].expand(n, h, w)
    grid = torch.stack([columns, rows], dim=-1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def _image_shape(x: Tensor) -> torch.Size:
    if x.ndim != 4 or not x.is_floating_point():
        raise ValueError(f"Augmentation needs float images [N, C, H, W], got {x.dtype} {list(x.shape)}.")
    return x.shape


def _check_range(name: str, value: Sequence[float], is_positive: bool, most: float = LARGEST) -> None:
    """Two numbers (low, high), low not above high."""
    check_kind(name, value, (tuple, list), "(low, high)")
    is_right = len(value) == 2 and 0 <= value[0] <= value[1] <= most
    if not is_right or (is_positive and value[0] == 0):
        bound = "0 < low" if is_positive else "0 <= low"
        raise ValueError(f"`{name}` must be (low, high) with {bound} <= high <= {most:g}, got {value}.")
