"""Rules for `trainer.aggregator`, from uploads to the next global state: the mean, and Byzantine-robust ones.

A rule is a callable of the uploads and the current state. All but the mean hold every upload of a round at once,
in client order whatever order they come in, and compute in float64: the same bits on one process or on many.
Invariants: uploads that are all equal come back; as many Byzantine clients as a rule tolerates cannot move it beyond
the honest ones.

A federation leaves out uploads with values that are not finite before any rule. A rule that is called by itself, except
for the mean, accepts them: NaN counts as the largest value (median, trimmed mean) or as infinitely far (Krum), and norm
clipping and the geometric median leave such an upload out.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from math import ceil, isfinite

import torch
from torch import Tensor

from fedlit.aggregation.uploads import (
    NOTHING,
    State,
    Upload,
    largest_counters,
    rows,
    unflattened,
    vector,
    weighted_mean,
    wide,
)
from fedlit.bounds import check_count

MOST_STEPS = 10_000  # more change nothing
Rule = Callable[[Iterable[Upload], Mapping[str, Tensor]], State]


class TooFewUploads(RuntimeError):
    """A round has fewer uploads than its rule needs."""


class Aggregator(ABC):
    """Base of fedlit's rules; a function of uploads and the current state will do as well."""

    fewest: int = 1
    """Fewest uploads with which the rule is robust; a round that cannot have them is refused."""

    @abstractmethod
    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        """The next state: every name of the uploads, and no other."""


class Mean(Aggregator):
    r"""The mean of the uploads by their weights, the default: `fedlit.aggregation.weighted_mean`.

    It takes uploads one by one and keeps none. A single Byzantine client can move it anywhere.
    """

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        return weighted_mean(uploads)


class Median(Aggregator):
    """The coordinate-wise median, whatever the weights: less than half of the clients may be Byzantine.

    Yin et al., 2018. https://arxiv.org/abs/1803.01498

    Example:
        >>> sent = [Upload(k, {"w": torch.tensor([v])}) for k, v in enumerate([1.0, 2.0, 900.0])]
        >>> Median()(sent, {})["w"]
        tensor([2.])
    """

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        def middle(ordered: Tensor) -> Tensor:
            half = (len(ordered) - 1) // 2
            return ordered[half : len(ordered) - half]

        return _coordinatewise(_held(uploads), middle)


class TrimmedMean(Aggregator):
    """The coordinate-wise mean without the largest and smallest values, whatever the weights.

    Yin et al., 2018. https://arxiv.org/abs/1803.01498

    Args:
        trim: Fraction of the uploads cut off at each end, in [0, 0.5), rounded down: so many clients may be
            Byzantine. 0 is the uniform mean.
    """

    def __init__(self, trim: float = 0.2) -> None:
        if not 0 <= trim < 0.5:
            raise ValueError(
                f"`trainer.aggregator.trim` is the fraction cut off at each end and must lie in [0, 0.5), got {trim}."
            )
        self.trim = trim
        self.fewest = ceil(1 / trim) if trim else 1  # with fewer, nothing at all would be cut off

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        held = _held(uploads, self.fewest, f"`trainer.aggregator.trim` of {self.trim}")
        cut = int(self.trim * len(held))
        return _coordinatewise(held, lambda ordered: ordered[cut : len(ordered) - cut])


class Krum(Aggregator):
    r"""The one upload that is nearest to its neighbours, whatever the weights.

    Blanchard et al., 2017. https://arxiv.org/abs/1703.02757

    .. math:: w = w_{k^*}, \quad k^* = \arg\min_k \sum_{j \to k} \| w_k - w_j \|^2

    over the :math:`n - f - 2` nearest uploads :math:`j` of :math:`k`; among equals, the client of the lowest id.

    Args:
        num_bad: ``f``, Byzantine clients in a round; it takes ``2 f + 3`` uploads to tolerate them.

    Example:
        >>> sent = [Upload(k, {"w": torch.tensor([v])}) for k, v in enumerate([1.0, 2.0, 2.5, 4.0, 900.0])]
        >>> Krum(num_bad=1)(sent, {})["w"]
        tensor([2.])
    """

    def __init__(self, num_bad: int = 1) -> None:
        self.num_bad = check_count("trainer.aggregator.num_bad", num_bad)
        self.fewest = 2 * num_bad + 3

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        held = _held(uploads, self.fewest, f"`trainer.aggregator.num_bad` of {self.num_bad}")
        values = rows(held)
        best = krum_scores(values, self.num_bad).argsort(stable=True)[0]
        return _state(values[best], held)


class MultiKrum(Aggregator):
    r"""The mean of the uploads that Krum likes best, all counting the same.

    Blanchard et al., 2017, section 4 of https://arxiv.org/abs/1703.02757

    Args:
        num_bad: ``f``, Byzantine clients in a round; it takes ``2 f + 3`` uploads to tolerate them.
        num_kept: How many are averaged; 1 is Krum. By default all but `num_bad`.
    """

    def __init__(self, num_bad: int = 1, num_kept: int | None = None) -> None:
        self.num_bad = check_count("trainer.aggregator.num_bad", num_bad)
        if num_kept is not None:
            check_count("trainer.aggregator.num_kept", num_kept)
        self.num_kept = num_kept
        self.fewest = max(2 * num_bad + 3, num_kept or 0)

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        held = _held(uploads, self.fewest, f"`trainer.aggregator.num_bad` of {self.num_bad}")
        values = rows(held)
        kept = self.num_kept or len(held) - self.num_bad
        best = krum_scores(values, self.num_bad).argsort(stable=True)[:kept]
        return _state(values[best.sort().values].mean(dim=0), held)


class NormClipping(Aggregator):
    r"""The mean of updates by their weights, none of which is longer than a threshold.

    Sun et al., 2019, section 4 of https://arxiv.org/abs/1911.07963

    .. math:: w' = w + \sum_k \frac{a_k}{\sum_j a_j} \min\left(1, \frac{c}{\|w_k - w\|}\right) (w_k - w)

    with :math:`w` the current state. The norm is over all floating values that are shared. A Byzantine
    client still moves the mean, but by no more than its share of the weights times :math:`c`. Uploads that are not
    finite are left out.

    Args:
        threshold: ``c``; by default the round's median norm, which less than half of the clients cannot move beyond
            the others'. Infinity is the mean.
    """

    def __init__(self, threshold: float | None = None) -> None:
        if threshold is not None and not threshold > 0:
            raise ValueError(f"`trainer.aggregator.threshold` is a norm and must be above 0, got {threshold}.")
        self.threshold = threshold

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        held = _finite(_held(uploads))
        base = vector(current, held[0].state)
        updates = rows(held) - base
        norms = updates.norm(dim=1)
        threshold = self.threshold
        if threshold is None:
            threshold = float(norms.quantile(0.5))
        weights = _weights(held, updates)
        factors = weights / weights.sum() * clip_factors(norms, threshold)
        return _state(base + factors @ updates, held)


class GeometricMedian(Aggregator):
    r"""The point with the least sum of distances to the uploads, each counting by its weight.

    Pillutla et al., 2022. https://arxiv.org/abs/1912.13445

    .. math:: w' = \arg\min_v \sum_k a_k \| w_k - v \|, \qquad
        v \leftarrow \frac{\sum_k \beta_k w_k}{\sum_k \beta_k}, \quad \beta_k = \frac{a_k}{\max(\nu, \| w_k - v \|)}

    by Weiszfeld's steps from the current state. Clients with less than half of the weight may be Byzantine. Uploads
    that are not finite are left out.

    Args:
        steps: Number of Weiszfeld's steps.
        smoothing: ``nu``, the least distance that divides.

    Example:
        >>> sent = [Upload(k, {"w": torch.tensor([v])}) for k, v in enumerate([1.0, 2.0, 900.0])]
        >>> GeometricMedian(steps=100)(sent, {"w": torch.zeros(1)})["w"]
        tensor([2.])
    """

    def __init__(self, steps: int = 20, smoothing: float = 1e-6) -> None:
        self.steps = check_count("trainer.aggregator.steps", steps, most=MOST_STEPS)
        if not (isfinite(smoothing) and smoothing > 0):
            raise ValueError(f"`trainer.aggregator.smoothing` is a distance and must be above 0, got {smoothing}.")
        self.smoothing = smoothing

    def __call__(self, uploads: Iterable[Upload], current: Mapping[str, Tensor]) -> State:
        held = _finite(_held(uploads))
        values = rows(held)
        weights = _weights(held, values)
        v = vector(current, held[0].state)
        for _ in range(self.steps):
            away = values - v
            beta = weights / away.norm(dim=1).clamp(min=self.smoothing)
            v = v + (beta / beta.sum()) @ away
        return _state(v, held)


def krum_scores(values: Tensor, num_bad: int) -> Tensor:
    """How far each of the rows ``[K, D]`` is from its ``K - num_bad - 2`` nearest, as a sum of squares, ``[K]``."""
    # By differences, not by products: symmetric to the bit, and exactly 0 between equals.
    squares = torch.stack([(values - row).square().sum(dim=1) for row in values])
    nearest = squares.sort(dim=1).values[:, 1 : len(values) - num_bad - 1]  # the first is its own
    return nearest.sum(dim=1)


def clip_factors(norms: Tensor, threshold: float) -> Tensor:
    """Factors that scale vectors of these norms so that none is longer than the threshold.

    Example:
        >>> clip_factors(torch.tensor([0.0, 1.0, 4.0]), 2.0)
        tensor([1.0000, 1.0000, 0.5000])
    """
    return torch.where(norms > threshold, threshold / norms, torch.ones_like(norms))


def fewest_uploads(rule: Rule | None) -> int:
    """Uploads that a rule needs; 1 for a function, as for the mean."""
    return getattr(rule, "fewest", 1)


def _held(uploads: Iterable[Upload], fewest: int = 1, because: str = "") -> list[Upload]:
    """All of them, in client order."""
    held = sorted(uploads, key=lambda upload: upload.client)
    if not held:
        raise ValueError(NOTHING)
    if len(held) < fewest:
        raise TooFewUploads(f"{because} needs {fewest} uploads in a round, got {len(held)}.")
    return held


def _finite(uploads: list[Upload]) -> list[Upload]:
    """Those whose values and weight are finite: a sum with one of the others is NaN, however small its share."""
    found = []
    for upload in uploads:
        floating = [tensor for tensor in upload.state.values() if tensor.is_floating_point()]
        if isfinite(upload.weight) and all(bool(tensor.isfinite().all()) for tensor in floating):
            found.append(upload)
    if not found:
        raise ValueError(NOTHING)
    return found


def _coordinatewise(uploads: list[Upload], kept: Callable[[Tensor], Tensor]) -> State:
    """The mean of those values that are kept of the ordered ones ``[K, ...]``."""
    result: State = {}
    for name, first in uploads[0].state.items():
        if first.is_floating_point():
            ordered = torch.stack([upload.state[name] for upload in uploads]).sort(dim=0).values
            result[name] = wide(kept(ordered)).mean(dim=0).to(first)
    return result | largest_counters(uploads)


def _state(values: Tensor, uploads: list[Upload]) -> State:
    """Of floating values ``[D]``, and of every counter the largest."""
    return unflattened(values, uploads[0].state) | largest_counters(uploads)


def _weights(uploads: list[Upload], values: Tensor) -> Tensor:
    """Of each row of the values; relative to the first, so that equal weights of any size give the same bits."""
    return values.new_tensor([upload.weight / uploads[0].weight for upload in uploads])
