"""Losses: tensors in, a scalar out, one equation each."""

from collections.abc import Iterable
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

# Widths of the kernel that FedMMD's authors took from domain separation networks; a width is a variance.
FIXED_WIDTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6)


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


def mutual_loss(logits: Tensor, peer_logits: Tensor, target: Tensor, weight: float) -> Tensor:
    r"""Learn from the labels and from a peer network.

    .. math:: L = w \, \mathrm{CE}(p, y) + (1 - w) \, D_{KL}(q \,\|\, p)

    with :math:`p = \mathrm{softmax}(z)` trained and :math:`q = \mathrm{softmax}(z_{peer})` held constant.

    Args:
        logits: ``z``, ``[N, C]``.
        peer_logits: ``z_peer``, ``[N, C]``; receives no gradient.
        target: ``y``, class indices ``[N]``.
        weight: ``w`` in [0, 1]; 1 is cross-entropy alone, 0 is imitation alone.

    Example:
        >>> from torch import tensor
        >>> mutual_loss(tensor([[2.0, 0.0]]), tensor([[0.0, 2.0]]), tensor([0]), weight=0.0)
        tensor(1.5232)
    """
    if not 0.0 <= weight <= 1.0:
        raise ValueError(f"`weight` mixes two losses and must lie in [0, 1], got {weight}.")
    if weight == 1.0:
        return F.cross_entropy(logits, target)
    log_p = F.log_softmax(logits, dim=1)
    log_q = F.log_softmax(peer_logits.detach(), dim=1)
    imitation = F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)  # "mean" would divide by C too
    return weight * F.nll_loss(log_p, target) + (1 - weight) * imitation


def half_squared_error(a: Tensor, b: Tensor) -> Tensor:
    r"""Half the sum of squared differences, over samples and components: a sum, not a mean.

    .. math:: \tfrac{1}{2} \sum_{n, c} (a_{nc} - b_{nc})^2

    Example:
        >>> half_squared_error(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 0.0], [3.0, 2.0]]))
        tensor(4.5000)
    """
    return (a - b).square().sum() / 2


def mmd(a: Tensor, b: Tensor, kernel: Literal["fixed", "adaptive"] = "fixed") -> Tensor:
    r"""Squared maximum mean discrepancy of two samples, biased (diagonals included), under a sum of Gaussian kernels.

    .. math:: \overline{K(a, a)} + \overline{K(b, b)} - 2 \overline{K(a, b)}, \quad
        K(x, y) = \sum_s \exp(-\|x - y\|^2 / 2 s)

    Args:
        a: ``[N, D]``.
        b: ``[M, D]``.
        kernel: ``fixed`` sums 19 widths s from 1e-6 to 1e6; ``adaptive`` takes five, spread by factors of 2 around the
            mean squared distance, which receives no gradient, and exp(-d / s).

    Example:
        >>> round(float(mmd(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))), 4)  # 2 * sum_s (1 - exp(-25 / 2 s))
        21.6548
    """
    n = len(a)
    # Distances by the Gram matrix, in double: its rounding error in float would drown widths down to 1e-6.
    joint = torch.cat([a, b]).double()
    squares = joint.square().sum(dim=1)
    d = (squares[:, None] + squares[None, :] - 2 * joint @ joint.T).clamp_min(0)
    if kernel == "fixed":
        scales = 2 * d.new_tensor(FIXED_WIDTHS)
    else:
        mean = d.detach().sum() / max(len(joint) * (len(joint) - 1), 1)
        scales = (mean / 4).clamp_min(1e-8) * 2 ** torch.arange(5, device=d.device)
    k = torch.exp(d.float() * (-1 / scales).float()[:, None, None]).sum(dim=0)
    return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()
