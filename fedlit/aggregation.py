"""From uploads to what all agree on. Pure functions over states (name -> tensor), one rule each.

Sums run in client order and in float64, so a round ends in the same bits on one process or on many. `weighted_mean`
takes uploads one at a time and keeps none. Integer tensors (BatchNorm's step counters) are never averaged: the largest
wins.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import isfinite

import torch
from torch import Tensor

State = dict[str, Tensor]


@dataclass(frozen=True)
class Upload:
    """What one client sends: the shared part of its state, and how much it counts."""

    client: int
    state: State
    weight: float = 1.0


def num_bytes(state: Mapping[str, Tensor]) -> int:
    """Bytes of all tensors of a state.

    Example:
        >>> num_bytes({"a": torch.zeros(3, 2), "b": torch.zeros(1, dtype=torch.int64)})
        32
    """
    return sum(tensor.numel() * tensor.element_size() for tensor in state.values())


def defect(upload: Upload, expected: Mapping[str, Tensor]) -> str | None:
    """Why an upload cannot be used, or None: names, shapes, dtypes, finite values and weight must be as expected."""
    if not (isfinite(upload.weight) and upload.weight > 1e-9):  # relative to a smaller one, the others would overflow
        return f"weight must be positive and finite, got {upload.weight}"
    if missing := expected.keys() - upload.state.keys():
        return f"missing {sorted(missing)[0]!r} ({len(missing)} in all)"
    if undeclared := upload.state.keys() - expected.keys():
        return f"undeclared {sorted(undeclared)[0]!r} ({len(undeclared)} in all)"
    for name, tensor in upload.state.items():
        wanted = expected[name]
        if tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            return f"{name!r} must be {tuple(wanted.shape)} {wanted.dtype}, got {tuple(tensor.shape)} {tensor.dtype}"
        # A sum is many times faster than isfinite, and finite only if all values are; it may also overflow by itself.
        if tensor.is_floating_point() and not isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            return f"{name!r} is not finite"
    return None


def weighted_mean(uploads: Iterable[Upload]) -> State:
    r"""The mean of the uploads, each counting by its weight.

    .. math:: w = \sum_k \frac{a_k}{\sum_j a_j} w_k

    Memory does not grow with the number of uploads. Weights are taken relative to the first, so that equal weights of
    any size give the same bits.

    Example:
        >>> uploads = [Upload(0, {"w": torch.tensor([1.0])}, 1), Upload(1, {"w": torch.tensor([4.0])}, 2)]
        >>> weighted_mean(uploads)["w"]
        tensor([3.])
    """
    total, unit = 0.0, None
    like: State = {}
    sums: State = {}
    for upload in uploads:
        unit = upload.weight if unit is None else unit
        weight = upload.weight / unit
        total += weight
        if not sums:
            like = upload.state
            sums = {name: _wide(tensor).clone() for name, tensor in upload.state.items()}
            continue
        means = [name for name, tensor in upload.state.items() if tensor.is_floating_point()]
        if means:
            torch._foreach_add_([sums[n] for n in means], [_narrow(upload.state[n]) for n in means], alpha=weight)
        for name in upload.state.keys() - means:
            torch.maximum(sums[name], upload.state[name], out=sums[name])
    _refuse_none(unit is not None)
    return {n: s.div_(total).to(like[n]) if s.is_floating_point() else s for n, s in sums.items()}


def median(uploads: Iterable[Upload]) -> State:
    """The coordinate-wise median, whatever the weights: half of the clients may lie.

    Example:
        >>> median([Upload(k, {"w": torch.tensor([v])}) for k, v in enumerate([1.0, 2.0, 900.0])])["w"]
        tensor([2.])
    """
    return _coordinatewise(uploads, lambda stacked: stacked.quantile(0.5, dim=0))


def trimmed_mean(uploads: Iterable[Upload], trim: float = 0.1) -> State:
    """The coordinate-wise mean without the `trim` largest and `trim` smallest values, whatever the weights.

    Args:
        uploads: At least one.
        trim: Fraction cut off at each end, in [0, 0.5); 0 is the uniform mean.
    """
    if not 0 <= trim < 0.5:
        raise ValueError(f"`trim` is the fraction cut off at each end and must lie in [0, 0.5), got {trim}.")

    def inner_mean(stacked: Tensor) -> Tensor:
        cut = int(trim * len(stacked))
        return stacked.sort(dim=0).values[cut : len(stacked) - cut].mean(dim=0)

    return _coordinatewise(uploads, inner_mean)


def _coordinatewise(uploads: Iterable[Upload], rule: Callable[[Tensor], Tensor]) -> State:
    states = [upload.state for upload in uploads]
    _refuse_none(bool(states))
    result: State = {}
    for name, first in states[0].items():
        stacked = torch.stack([_wide(state[name]) for state in states])
        result[name] = rule(stacked).to(first) if first.is_floating_point() else stacked.amax(dim=0)
    return result


def _wide(tensor: Tensor) -> Tensor:
    return _narrow(tensor).to(torch.float64) if tensor.is_floating_point() else tensor


def _narrow(tensor: Tensor) -> Tensor:
    """Where it can be added to float64, which MPS does not know."""
    return tensor.cpu() if tensor.device.type == "mps" else tensor


def _refuse_none(any_upload: bool) -> None:
    if not any_upload:
        raise ValueError("There is nothing to aggregate: no client sent a usable upload.")
