r"""The mean of uploads that lie in several places, with the bits of `weighted_mean` over all of them in client order.

A sum depends on its order, so parts that were added up apart do not add up to the loop's sum. But the loop's *rounded*
mean can be told from them. Every part brings, of each entry, its sum :math:`s` in float64 and the largest and smallest
exponents of what was added. Of all parts together, with :math:`r_k = a_k / a_1`, :math:`K` uploads, :math:`P` parts and
:math:`u = 2^{-53}`:

1. Terms are multiples of :math:`g = 2^{e_{min} - 23} \, 2^t`, where :math:`2^t` divides every :math:`r_k`. If
   :math:`\sum_k r_k |x_k| \le 2^{53} g`, every sum of them is a number of float64, whatever the order: nothing was
   rounded, and the loop has the same sum. With equal weights that is the rule; ties, of which there are many then, are
   broken alike.
2. Else loop and parts differ from the true mean, and so from each other, by no more than
   :math:`4 (K + P + 4) \, u \max_k |x_k|`: each rounds every term at most :math:`K + P + 2` times. Where both ends of
   that interval are rounded to one number, it is the loop's.
3. What is left (about one entry in a million, or of weights that are small whole numbers one in their sum) is *open*:
   its values are asked for and added in client order. Entries in float64 are always open, for nothing rounds them.

Rounding to a narrower type never changes an order, which is all that 2 relies on. That an entry is added in the same
way wherever it stands in its tensor is torch's; a test asks it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import frexp

import torch
from torch import Tensor

from fedlit.aggregation.uploads import State, Upload, narrow, weighted_mean

NARROW = (torch.float32, torch.float16, torch.bfloat16)  # all of them numbers of float32
BITS = 23  # of a number of float32 behind its first
BIAS = 127  # of its exponent
NO_EXPONENT = 255  # of zero: no finite number has it
OPEN = "open"
WIDE = "wide"


@dataclass
class PartialSum:
    """Of some of a round's uploads, what the mean of all is told from.

    Attributes:
        like: Of the names, shapes, dtypes and device of an upload.
        sums: Of each narrow entry the sum by relative weights, ``[D]`` in float64; -0.0, of none, adds nothing.
        exponents: The largest, and `NO_EXPONENT` less the smallest, ``[2, D]`` in uint8; of parts, the larger holds.
        largest: Of each entry that is not floating, ``[I]`` in int64.
    """

    like: Mapping[str, Tensor]
    sums: Tensor
    exponents: Tensor
    largest: Tensor

    @classmethod
    def of_nothing(cls, like: Mapping[str, Tensor]) -> "PartialSum":
        """Before the first upload."""
        device = _device(like)
        size = sum(like[name].numel() for name in _narrow_names(like))
        num_counted = sum(like[name].numel() for name in _counted_names(like))
        return cls(
            like,
            torch.full([size], -0.0, dtype=torch.float64, device=device),
            torch.zeros([2, size], dtype=torch.uint8, device=device),
            torch.full([num_counted], torch.iinfo(torch.int64).min, device=device),
        )

    def add(self, upload: Upload, unit: float) -> None:
        """One more upload; `unit` is the weight of the round's first."""
        values = _flat(upload.state, _narrow_names(self.like), torch.float32)
        self.sums.add_(values, alpha=upload.weight / unit)
        exponents = (values.view(torch.int32) >> BITS) & NO_EXPONENT
        above = (NO_EXPONENT - exponents) * (values != 0)
        torch.maximum(self.exponents, torch.stack([exponents, above]).to(torch.uint8), out=self.exponents)
        counted = _flat(upload.state, _counted_names(self.like), torch.int64)
        torch.maximum(self.largest, counted, out=self.largest)

    def join(self, other: "PartialSum") -> None:
        """What another part has added up."""
        self.sums += other.sums
        torch.maximum(self.exponents, other.exponents, out=self.exponents)
        torch.maximum(self.largest, other.largest, out=self.largest)


@dataclass
class Settled:
    """A mean but for what is open.

    Attributes:
        like: Of the names, shapes and dtypes of an upload.
        means: Of narrow entries, ``[D]`` in float64; rounded, they are the loop's.
        open: Positions of those that are not known yet, ``[U]``.
        largest: Of entries that are not floating.
    """

    like: Mapping[str, Tensor]
    means: Tensor
    open: Tensor
    largest: Tensor

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to ask for."""
        return not len(self.open) and not _wide_names(self.like)

    def asked_for(self, upload: Upload) -> Upload:
        """Of an upload the entries that are open, in float64."""
        values = _flat(upload.state, _narrow_names(self.like), torch.float32)
        wide_values = _flat(upload.state, _wide_names(self.like), torch.float64)
        return Upload(upload.client, {OPEN: values[self.open].double(), WIDE: wide_values}, upload.weight)

    def completed(self, asked: Iterable[Upload]) -> State:
        """The mean, with what was open added up in client order.

        Args:
            asked: What `asked_for` gives of every upload, in client order; nobody looks where it is complete.
        """
        like = self.like
        means = self.means
        wide_means = means[:0]
        if not self.is_complete:
            late = weighted_mean(asked)
            means = means.index_copy(0, self.open, late[OPEN])
            wide_means = late[WIDE]
        parts = _split(means, _narrow_names(like), like)
        parts |= _split(wide_means, _wide_names(like), like)
        parts |= _split(self.largest, _counted_names(like), like)
        return {name: parts[name] for name in like}


def is_summable(like: Mapping[str, Tensor]) -> bool:
    """Whether states of these dtypes may be added up in parts."""
    known = (*NARROW, torch.float64)
    return all(t.dtype in known or not (t.is_floating_point() or t.is_complex()) for t in like.values())


def settled(summed: PartialSum, weights: Sequence[float], num_parts: int) -> Settled:
    """What the parts of a round tell of its mean.

    Args:
        summed: All parts together.
        weights: Of all uploads, in client order.
        num_parts: How many parts there were.
    """
    like = summed.like
    shares = [weight / weights[0] for weight in weights]
    total = shares[0]
    for share in shares[1:]:
        total += share
    # Exponents may lie so far apart that every sum is a number of float64 still.
    room = 52 - BITS + min(map(_trailing, shares)) - frexp(total)[1]
    error = 4 * (len(weights) + num_parts + 4) * 2.0**-53
    means = summed.sums / total
    found: list[Tensor] = []
    start = 0
    for name in _narrow_names(like):
        end = start + like[name].numel()
        largest, above = summed.exponents[:, start:end].to(torch.int32)
        smallest = NO_EXPONENT - above
        unsure = (largest.clamp_min(1) - smallest.clamp_min(1) > room).nonzero()[:, 0]
        if len(unsure):
            bounds = error * torch.exp2(largest[unsure].clamp_min(1).double() + (1 - BIAS))
            is_open = _crosses(means[start:end][unsure], bounds, like[name].dtype)
            found.append(start + unsure[is_open])
        start = end
    nothing = torch.zeros([0], dtype=torch.int64, device=means.device)
    return Settled(like, means, torch.cat([nothing, *found]), summed.largest)


def _crosses(means: Tensor, bounds: Tensor, dtype: torch.dtype) -> Tensor:
    """Whether numbers within these bounds are not all rounded to one; zeros of both signs are two."""
    low = (means - bounds).to(dtype)
    high = (means + bounds).to(dtype)
    return (low != high) | (low.signbit() != high.signbit())


def _trailing(share: float) -> int:
    """The exponent of the largest power of two that divides a number.

    Example:
        >>> _trailing(1.0), _trailing(12.0), _trailing(0.75)
        (0, 2, -2)
    """
    numerator, denominator = share.as_integer_ratio()
    return (numerator & -numerator).bit_length() - denominator.bit_length()


def _narrow_names(state: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in state.items() if tensor.dtype in NARROW]


def _wide_names(state: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in state.items() if tensor.dtype == torch.float64]


def _counted_names(state: Mapping[str, Tensor]) -> list[str]:
    return [name for name, tensor in state.items() if not tensor.is_floating_point()]


def _device(like: Mapping[str, Tensor]) -> torch.device:
    return next((narrow(tensor).device for tensor in like.values()), torch.device("cpu"))


def _flat(state: Mapping[str, Tensor], names: list[str], dtype: torch.dtype) -> Tensor:
    """Of these names, end to end, ``[D]``."""
    parts = [narrow(state[name]).flatten().to(dtype) for name in names]
    return torch.cat(parts) if parts else torch.zeros([0], dtype=dtype, device=_device(state))


def _split(values: Tensor, names: list[str], like: Mapping[str, Tensor]) -> State:
    sizes = [like[name].numel() for name in names]
    parts = values.split(sizes) if sizes else ()
    return {name: part.reshape(like[name].shape).to(like[name]) for name, part in zip(names, parts, strict=True)}
