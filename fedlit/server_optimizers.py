r"""Optimisers for `trainer.server_optimizer`. Reddi et al., 2021. https://arxiv.org/abs/2003.00295

The server steps along the direction of a round, Delta = combined - x, with the combined uploads of the round:

    m <- b1 m + (1 - b1) Delta
    v <- v + Delta^2                                 FedAdagrad
    v <- v - (1 - b2) Delta^2 sign(v - Delta^2)      FedYogi
    v <- b2 v + (1 - b2) Delta^2                     FedAdam
    x <- x + lr m / (sqrt(v) + tau)

from m = 0 and v = tau^2, without Adam's correction of bias: the paper's algorithm 2, not torch.optim.Adam's.
FedAvgM (Hsu et al., 2019, https://arxiv.org/abs/1909.06335) is torch.optim.SGD with momentum and lr 1.

Invariant: where b1 = b2 = 0, FedAdam moves every weight by lr Delta / (|Delta| + tau).
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from fedlit.bounds import check_number, check_positive

OPTION = "trainer.server_optimizer"
Betas = tuple[float, float]
BETAS = (0.9, 0.99)
TAU = 1e-3


class _Adaptive(Optimizer, ABC):
    """Algorithm 2 of the paper, whose variants differ in v."""

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01, betas: Betas = BETAS, tau: float = TAU) -> None:
        check_positive(f"{OPTION}.lr", lr)
        check_positive(f"{OPTION}.tau", tau)
        for number, beta in enumerate(betas, start=1):
            if not 0 <= check_number(f"{OPTION}.beta{number}", beta) < 1:
                raise ValueError(f"`{OPTION}`: beta{number} must lie in [0, 1), got {beta}.")
        super().__init__(params, {"lr": lr, "betas": betas, "tau": tau})

    @abstractmethod
    def second_moment(self, v: Tensor, squared: Tensor, b2: float) -> Tensor:
        """The new v from the old one and Delta^2."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]  # it has no loss to return
        for group in self.param_groups:
            b1, b2 = group["betas"]
            tau = group["tau"]
            for x in group["params"]:
                if x.grad is None:
                    continue
                state = self.state[x]
                if not state:
                    state["m"] = torch.zeros_like(x)
                    state["v"] = torch.full_like(x, tau**2)
                delta = -x.grad
                state["m"] = b1 * state["m"] + (1 - b1) * delta
                state["v"] = self.second_moment(state["v"], delta.square(), b2)
                x.add_(state["m"] / (state["v"].sqrt() + tau), alpha=group["lr"])


class FedAdam(_Adaptive):
    """An exponential mean of squares.

    Args:
        params: What is shared and trained.
        lr: Length of a step; the paper tunes it between 0.001 and 1.
        betas: ``b1`` and ``b2``, how much of the old means is kept, each in [0, 1).
        tau: Adaptivity: the smaller, the more alike are steps of all weights.

    Example:
        >>> x = torch.nn.Parameter(torch.tensor([1.0]))
        >>> x.grad = torch.tensor([-0.003])  # Delta = 0.003
        >>> FedAdam([x], lr=0.1, betas=(0.0, 0.0), tau=0.001).step()
        >>> x.data
        tensor([1.0750])
    """

    def second_moment(self, v: Tensor, squared: Tensor, b2: float) -> Tensor:
        return b2 * v + (1 - b2) * squared


class FedYogi(_Adaptive):
    """A mean of squares that changes by at most (1 - b2) Delta^2.

    Args:
        params: What is shared and trained.
        lr: Length of a step; the paper tunes it between 0.001 and 1.
        betas: ``b1`` and ``b2``, how much of the old means is kept, each in [0, 1).
        tau: Adaptivity: the smaller, the more alike are steps of all weights.
    """

    def second_moment(self, v: Tensor, squared: Tensor, b2: float) -> Tensor:
        return v - (1 - b2) * squared * torch.sign(v - squared)


class FedAdagrad(_Adaptive):
    """A sum of squares: steps become smaller and smaller.

    Args:
        params: What is shared and trained.
        lr: Length of a step; the paper tunes it between 0.001 and 1.
        beta1: ``b1``, how much of the old direction is kept, in [0, 1); the paper has 0.
        tau: Adaptivity: the smaller, the more alike are steps of all weights.
    """

    def __init__(self, params: Iterable[Tensor], lr: float = 0.01, beta1: float = 0.0, tau: float = TAU) -> None:
        super().__init__(params, lr, (beta1, 0.0), tau)

    def second_moment(self, v: Tensor, squared: Tensor, b2: float) -> Tensor:
        return v + squared
