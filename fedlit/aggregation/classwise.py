"""What clients say of each class, added up: for methods that exchange means per class in place of weights."""

from collections.abc import Iterable
from typing import Literal

from torch import Tensor

from fedlit.aggregation.uploads import NOTHING, Upload, wide


def class_totals(uploads: Iterable[Upload], weighting: Literal["examples", "uniform"]) -> tuple[Tensor, Tensor]:
    r"""Of each class, the sum of clients' means and what they count together, in client order and float64.

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
    exact = counts.double()  # a sum of integers might come round to a small one
    if bool((exact < 0).any()) or float(exact.sum()) > most:
        allowed = f"at least 0 each and at most {most} together"
        raise ValueError(f"counts of classes must be {allowed}, got {counts.tolist()}.")
