"""Losses: tensors in, a scalar out, one equation each."""

from collections.abc import Iterable

from torch import Tensor


def proximal_penalty(parameters: Iterable[Tensor], anchors: Iterable[Tensor], mu: float) -> Tensor | float:
    r"""Pull parameters towards where they started.

    .. math:: \frac{\mu}{2} \sum_i \| w_i - w^t_i \|^2

    Args:
        parameters: ``w``, trained.
        anchors: ``w^t``, of the same shapes; receive no gradient.
        mu: Strength, at least 0; 0 is no pull at all.

    Example:
        >>> from torch import tensor
        >>> proximal_penalty([tensor([3.0, 1.0])], [tensor([1.0, 0.0])], mu=0.4)
        tensor(1.)
    """
    if mu < 0:
        raise ValueError(f"`mu` pulls towards the global model and must be at least 0, got {mu}.")
    return mu / 2 * sum((w - anchor.detach()).square().sum() for w, anchor in zip(parameters, anchors, strict=True))
