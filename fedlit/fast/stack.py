r"""Perceptrons trained side by side: clients with few samples each as one batch of matrices.

With a few samples per client a step costs more around its arithmetic than in it; a stack pays that once for all. All
begin with the server's weights and see the same samples in every epoch, so that the first and widest layer is only
written out at the end. Until then, what each sample :math:`i` has added to it (rate included) stands for it:

.. math:: W_t x_j + b_t = (W_0 x_j + b_0) - \sum_i \delta_i (x_i \cdot x_j + 1), \quad
          W_T = W_0 - \sum_i \delta_i x_i^T, \quad b_T = b_0 - \sum_i \delta_i

Laws: autograd's steps, but for rounding. A client's bits do not depend on who stands beside it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedlit.data.batches import Batches
from fedlit.data.client import Client
from fedlit.engine.plan import Interrupted
from fedlit.fast.perceptron import relu_backward

ROOM = 2**25  # bytes of a stack, or little more
SMALL, FASTER = 64, 2  # in place of batches of up to 64, a stack may multiply twice as often: its products are larger
SPARED = 20e6  # multiplications, in place of a visit's other costs


class Kind(NamedTuple):
    """What must be equal in a stack."""

    samples: int
    batch_size: int
    epochs: int
    steps: int | None

    def fits(self, features: int, width: int) -> bool:
        """Whether the first layer costs less as products of samples than as itself, twice in every step."""
        size = min(self.batch_size, self.samples)
        seen = self.samples * self.epochs if self.steps is None else size * self.steps
        products = self.samples * features * (2 * width + self.samples) + seen * self.samples * width
        allowed = (FASTER if size <= SMALL else 1) * 2 * seen * features * width + SPARED
        return seen > 0 and products <= allowed and self.num_bytes(features, width) <= ROOM

    def num_bytes(self, features: int, width: int) -> int:
        """What a client takes in a stack, beside deeper layers."""
        return 4 * self.samples * (features + self.samples + 2 * width)


@dataclass(frozen=True)
class Member:
    """A client of a stack, its batches, its learning rate, and what built the optimiser that has it."""

    client: Client
    batches: Batches
    rate: float
    factory: Callable | None = None

    @property
    def x(self) -> Tensor:
        return self.batches.x.flatten(1)


class Stack:
    """Perceptrons that begin with the same weights, each on its own samples.

    S clients of N samples: what belongs to samples is held as ``[S * N, ...]``, what to clients as ``[S, ...]``.

    Args:
        weights: Of every layer, ``[out, in]``.
        biases: Of every layer.
        members: Clients of one kind.
    """

    def __init__(self, weights: Sequence[Tensor], biases: Sequence[Tensor], members: Sequence[Member]) -> None:
        self.members = members
        # A product of one matrix is rounded otherwise than one of many: who stands alone stands beside itself.
        self.copies = 2 if len(members) == 1 else 1
        self.size, samples = len(members) * self.copies, len(members[0].batches.y)
        self.first = weights[0], biases[0]
        self.weights = [weight.expand(self.size, -1, -1).clone() for weight in weights[1:]]
        self.biases = [bias.expand(self.size, 1, -1).clone() for bias in biases[1:]]
        self.outputs = self._all(lambda member: torch.addmm(biases[0], member.x, weights[0].t()))
        self.products = self._all(lambda member: torch.mm(member.x, member.x.t())).add_(1)
        self.targets = self._all(lambda member: member.batches.y)
        self.rates = self._all(lambda member: torch.tensor([member.rate])).view(-1, 1, 1)
        self.starts = torch.arange(self.size)[:, None] * samples
        self.added = torch.zeros(self.size * samples, len(biases[0]))
        self.loss, self.steps = torch.zeros(self.size, dtype=torch.float64), 0

    def _all(self, part: Callable[[Member], Tensor]) -> Tensor:
        return torch.cat([part(member) for member in self.members] * self.copies)

    @torch.no_grad()
    def train(self, kind: Kind, should_stop: Callable[[], bool]) -> None:
        """All steps of a visit."""
        batches = self.members[0].batches
        for _ in range(kind.epochs if kind.steps is None else kind.steps):
            order = self._all(lambda member: member.batches.order()).view(self.size, -1).add(self.starts)
            for batch in order.split(batches.batch_size, dim=1)[: len(batches)]:
                if should_stop():
                    raise Interrupted
                self._step(batch.flatten())
                if self.steps == kind.steps:
                    return

    def _step(self, batch: Tensor) -> None:
        def chosen(samples: Tensor) -> Tensor:
            return samples.index_select(0, batch).view(self.size, len(batch) // self.size, -1)

        added = self.added.view(self.size, -1, self.added.shape[1])
        z = torch.baddbmm(chosen(self.outputs), chosen(self.products), added, alpha=-1)
        inputs = []  # of every layer but the first
        for weight, bias in zip(self.weights, self.biases, strict=True):
            inputs.append(z.clamp_min_(0))
            z = torch.baddbmm(bias, z, weight.transpose(1, 2))
        log_p, target = z.log_softmax(2), chosen(self.targets)
        log_right = log_p.gather(2, target)
        self.loss.sub_(log_right.mean((1, 2)))
        # p minus one for the right class, p for any other; without cancellation
        delta = log_p.exp_().scatter_(2, target, log_right.expm1()).mul_(self.rates / target.shape[1])
        for weight, bias, a in zip(self.weights[::-1], self.biases[::-1], inputs[::-1], strict=True):
            below = relu_backward(torch.bmm(delta, weight), a, 0)
            weight.baddbmm_(delta.transpose(1, 2), a, alpha=-1)
            bias.sub_(delta.sum(1, keepdim=True))
            delta = below
        self.added.index_add_(0, batch, delta.flatten(0, 1))
        self.steps += 1

    @torch.no_grad()
    def trained(self, place: int) -> tuple[list[Tensor], float]:
        """A member's weight and bias of every layer in turn, and its mean loss."""
        (weight, bias), added = self.first, self.added.view(self.size, -1, self.added.shape[1])[place]
        layers = [torch.addmm(weight, added.t(), self.members[place].x, alpha=-1), bias - added.sum(0)]
        for weight, bias in zip(self.weights, self.biases, strict=True):
            layers += [weight[place].clone(), bias[place, 0].clone()]
        return layers, float(self.loss[place]) / self.steps
