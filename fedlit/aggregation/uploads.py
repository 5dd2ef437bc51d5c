"""Uploads of clients: their validation, their mean, their form as vectors, and sums for each class.

All are pure functions over states (name -> tensor). Sums run in client order and in float64, so a round ends in the
same bits on one process or on many. `weighted_mean` takes uploads one at a time and keeps none. Integer tensors
(BatchNorm's step counters) are never averaged: the largest wins.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from math import isfinite, sqrt
from statistics import median_low
from typing import Any, Literal

import torch
from torch import Tensor

State = dict[str, Tensor]
SMALLEST_WEIGHT, LARGEST_WEIGHT = 1e-9, 1e9
NOTHING = "There is nothing to aggregate: no client sent a usable upload."


@dataclass(frozen=True)
class Upload:
    """The upload of one client: the shared part of its state, and its weight."""

    client: int
    state: State
    weight: float = 1.0

    def copy(self) -> "Upload":
        """A copy with its own tensors."""
        return replace(self, state={name: tensor.clone() for name, tensor in self.state.items()})


class RoundUploads(ABC):
    """The uploads of a round, as `aggregate` gets them, with a mean that need not iterate over them."""

    @abstractmethod
    def __iter__(self) -> Iterator[Upload]:
        """In client order."""

    @abstractmethod
    def __len__(self) -> int:
        """How many there are."""

    @abstractmethod
    def mean(self) -> State:
        """As `weighted_mean` of all of them, to the bit."""


def watched(uploads: Iterable[Upload], look: Callable[[Upload], object]) -> Iterator[Upload]:
    """The uploads, unchanged, while a function is called with each; none is kept.

    Example:
        >>> weights = []
        >>> sent = [Upload(0, {"w": torch.ones(1)}, 3), Upload(1, {"w": torch.ones(1)}, 4)]
        >>> weighted_mean(watched(sent, lambda upload: weights.append(upload.weight))), weights
        ({'w': tensor([1.])}, [3, 4])
    """
    for upload in uploads:
        look(upload)
        yield upload


def num_bytes(value: Any) -> int:
    """Bytes of all tensors of a state, or in other dicts and lists.

    Example:
        >>> num_bytes({"a": torch.zeros(3, 2), "b": [torch.zeros(1, dtype=torch.int64), "c"]})
        32
    """
    if isinstance(value, Tensor):
        return value.nbytes
    if isinstance(value, dict):
        return num_bytes([*value.values()])
    return sum(map(num_bytes, value)) if isinstance(value, list | tuple) else 0


def defect(upload: Upload, expected: Mapping[str, Tensor]) -> str | None:
    """Why an upload cannot be used, or None: names, shapes, dtypes, finite values and weight must be as expected."""
    # Relative to a smaller weight the others would overflow, and a larger one alone would be all that counts.
    if not (isfinite(upload.weight) and SMALLEST_WEIGHT < upload.weight <= LARGEST_WEIGHT):
        return f"weight must be positive and at most {LARGEST_WEIGHT:g}, got {upload.weight}"
    if upload.state.keys() != expected.keys():
        return _other_names(upload.state, expected)
    for name, tensor in upload.state.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            return f"{name!r} must be {tuple(wanted.shape)} {wanted.dtype}, got {tuple(tensor.shape)} {tensor.dtype}"
        if tensor.device != wanted.device or tensor.layout != torch.strided:
            return f"{name!r} must be on {wanted.device} and strided, got {tensor.device} and {tensor.layout}"
    floating = {name: tensor.detach() for name, tensor in upload.state.items() if tensor.is_floating_point()}
    if _are_usable([tensor for tensor in floating.values() if tensor.numel()]):
        return None
    problems = ((name, _extreme(tensor)) for name, tensor in floating.items())
    return next((f"{name!r} {problem}" for name, problem in problems if problem), None)


def _other_names(state: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> str:
    missing = expected.keys() - state.keys()
    if missing:
        return f"missing {sorted(missing)[0]!r} ({len(missing)} in all)"
    undeclared = state.keys() - expected.keys()
    return f"undeclared {sorted(undeclared)[0]!r} ({len(undeclared)} in all)"


def _are_usable(tensors: list[Tensor]) -> bool:
    """Whether no value's square overflows, by one check of all norms; if one is too large, values may still be fine."""
    for dtype in {tensor.dtype for tensor in tensors}:
        alike = [tensor for tensor in tensors if tensor.dtype == dtype]
        limit = _usable(dtype)
        if not all(norm <= limit for norm in torch.stack(torch._foreach_norm(alike)).tolist()):
            return False
    return True


def _extreme(tensor: Tensor) -> str | None:
    """The problem with the largest absolute value, or None."""
    found = float(tensor.detach().abs().max()) if tensor.numel() else 0.0
    if not isfinite(found):
        return "is not finite"
    if found > _usable(tensor.dtype):
        return f"holds {found:.4g}, whose square overflows {tensor.dtype}"
    return None


@cache
def _usable(dtype: torch.dtype) -> float:
    """The largest usable value; of half precision, whose range is small, the largest of all."""
    most = float(torch.finfo(dtype).max)
    return most if dtype == torch.float16 else sqrt(most)


def out_of_proportion(values: Mapping[int, float], ratio: float | None, option: str, what: str) -> dict[int, str]:
    """The clients whose value is more than `ratio` times the median (of two in the middle, the smaller), and why.

    Where half of the clients have 0 there is no proportion to keep.

    Example:
        >>> out_of_proportion({0: 1.0, 1: 2.0, 2: 90.0}, 10, "max_weight_ratio", "weight")
        {2: 'weight 90 is 45 times the median of the round, 2; `trainer.max_weight_ratio` is 10'}
        >>> out_of_proportion({0: 0.0, 1: 0.0, 2: 90.0}, 10, "max_weight_ratio", "weight")
        {}
    """
    if ratio is None or not values:
        return {}
    middle = median_low(values.values())
    found = {}
    for client, value in values.items():
        if middle > 0 and value > ratio * middle:
            times = f"{value:.4g} is {value / middle:.4g} times the median of the round, {middle:.4g}"
            found[client] = f"{what} {times}; `trainer.{option}` is {ratio:g}"
    return found


def weighted_mean(uploads: Iterable[Upload]) -> State:
    r"""The mean of the uploads, each counting by its weight.

    .. math:: w = \sum_k \frac{a_k}{\sum_j a_j} w_k

    Memory does not grow with the number of uploads. Weights are taken relative to the first, so
    that equal weights of any size give the same bits.

    Example:
        >>> uploads = [Upload(0, {"w": torch.tensor([1.0])}, 1), Upload(1, {"w": torch.tensor([4.0])}, 2)]
        >>> weighted_mean(uploads)["w"]
        tensor([3.])
    """
    if isinstance(uploads, RoundUploads):
        return uploads.mean()
    running = RunningMean()
    for upload in uploads:
        running.add(upload)
    return running.mean()


class RunningMean(RoundUploads):
    """The mean of uploads that are added one at a time; none but the first is kept.

    Attributes:
        first: The first upload: the others must be like it, and weights are relative to its own.
        sums: Of weighted floating tensors in float64; of others the largest.
        total: Of the relative weights.
    """

    def __init__(self) -> None:
        self.first: Upload | None = None
        self.sums: State = {}
        self.total = 0.0
        self._num_added = 0

    def __len__(self) -> int:
        return self._num_added

    def __iter__(self) -> Iterator[Upload]:
        raise RuntimeError("These uploads were added up as they came; none was kept.")

    def add(self, upload: Upload) -> None:
        """Count one more upload."""
        self._num_added += 1
        if self.first is None:
            self.sums = {name: _begun(tensor) for name, tensor in upload.state.items()}
            self.first = upload
            self.total = 1.0
            return
        _check_alike(upload, self.first)
        weight = upload.weight / self.first.weight
        sums = []
        added = []
        for name, tensor in upload.state.items():
            if tensor.is_floating_point():
                sums.append(self.sums[name])
                added.append(narrow(tensor.detach()))
            else:
                torch.maximum(self.sums[name], tensor, out=self.sums[name])
        if added:
            torch._foreach_add_(sums, added, alpha=weight)
        self.total += weight

    def mean(self) -> State:
        """Of all that were added."""
        if self.first is None:
            raise ValueError(NOTHING)
        return {name: self._divided(summed, self.first.state[name]) for name, summed in self.sums.items()}

    def _divided(self, summed: Tensor, like: Tensor) -> Tensor:
        return (summed / self.total).to(like) if summed.is_floating_point() else summed


def _check_alike(upload: Upload, first: Upload) -> None:
    """Refuse uploads of other names or shapes than the first: missing values would count as 0, shapes be broadcast."""
    alike = first.state.keys() == upload.state.keys()
    if alike and all(tensor.shape == first.state[name].shape for name, tensor in upload.state.items()):
        return
    for name in first.state.keys() | upload.state.keys():
        one = first.state.get(name)
        other = upload.state.get(name)
        if one is None or other is None or one.shape != other.shape:
            shapes = ["absent" if tensor is None else str(tuple(tensor.shape)) for tensor in (one, other)]
            raise ValueError(
                f"{name!r} is {shapes[0]} in the upload of client {first.client} and {shapes[1]} in that of client "
                f"{upload.client}, which have no mean; a method whose clients differ has an `aggregate` of its own."
            )


def _begun(tensor: Tensor) -> Tensor:
    """A sum of one."""
    if not tensor.is_floating_point():
        return tensor.clone()
    return narrow(tensor.detach()).to(torch.float64, copy=True)


def wide(tensor: Tensor) -> Tensor:
    """In float64, if it is a floating one."""
    if not tensor.is_floating_point():
        return tensor
    return narrow(tensor).to(torch.float64)


def narrow(tensor: Tensor) -> Tensor:
    """On the CPU if its device is MPS, which has no float64."""
    if tensor.device.type == "mps":
        return tensor.cpu()
    return tensor


def rows(uploads: Sequence[Upload]) -> Tensor:
    """The floating values of each upload, ``[K, D]``."""
    return torch.stack([vector(upload.state, uploads[0].state) for upload in uploads])


def vector(state: Mapping[str, Tensor], like: Mapping[str, Tensor]) -> Tensor:
    """The floating values of a state, ``[D]``, of the names and in the order of another."""
    parts = [wide(state[name]).flatten() for name, tensor in like.items() if tensor.is_floating_point()]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.float64)


def unflattened(values: Tensor, like: Mapping[str, Tensor]) -> State:
    """The floating part of a state from its values ``[D]``.

    Example:
        >>> unflattened(torch.tensor([7.0, 8.0]), {"w": torch.ones(1, 2), "n": torch.tensor(3)})
        {'w': tensor([[7., 8.]])}
    """
    state: State = {}
    start = 0
    for name, tensor in like.items():
        if tensor.is_floating_point():
            part = values[start : start + tensor.numel()]
            state[name] = part.reshape(tensor.shape).to(tensor)
            start += tensor.numel()
    return state


def largest_counters(uploads: Sequence[Upload]) -> State:
    """Of each tensor that is not floating, the elementwise largest: such tensors are never averaged."""
    names = [name for name, tensor in uploads[0].state.items() if not tensor.is_floating_point()]
    return {name: torch.stack([upload.state[name] for upload in uploads]).amax(dim=0) for name in names}


def class_totals(uploads: Iterable[Upload], weighting: Literal["examples", "uniform"]) -> tuple[Tensor, Tensor]:
    r"""For each class, the sum of clients' weighted means and of their weights, in client order and float64.

    .. math:: S^j = \sum_i a_i^j C_i^j, \quad A^j = \sum_i a_i^j

    Args:
        uploads: With `means` ``[C, D]`` and `counts` ``[C]``, the number of samples of each class.
        weighting: A mean counts by its samples (`examples`), or all count the same, where there are any (`uniform`).

    Returns:
        ``S``, ``[C, D]``, and ``A``, ``[C]``.

    Example:
        >>> from torch import tensor
        >>> sent = [
        ...     Upload(0, {"means": tensor([[1.0]]), "counts": tensor([2])}),
        ...     Upload(1, {"means": tensor([[4.0]]), "counts": tensor([1])}),
        ... ]
        >>> class_totals(sent, "examples"), class_totals(sent, "uniform")
        ((tensor([[6.]], dtype=torch.float64), tensor([3])), (tensor([[5.]], dtype=torch.float64), tensor([2])))
    """
    total: Tensor | None = None
    weight: Tensor | None = None
    for upload in uploads:
        means = wide(upload.state["means"])
        counts = upload.state["counts"].to(means.device)
        if weighting == "uniform":
            counts = counts.sign()
        added = counts[:, None] * means
        total = added if total is None else total + added
        weight = counts if weight is None else weight + counts
    if total is None or weight is None:
        raise ValueError(NOTHING)
    return total, weight


def check_class_counts(counts: Tensor, most: int) -> None:
    """Refuse impossible numbers of samples: below 0, or more than there are.

    Args:
        counts: Of each class, ``[C]``.
        most: Samples of all classes together.
    """
    exact = counts.double()  # a sum of integers might overflow
    if bool((exact < 0).any()) or float(exact.sum()) > most:
        allowed = f"at least 0 each and at most {most} together"
        raise ValueError(f"counts of classes must be {allowed}, got {counts.tolist()}.")
