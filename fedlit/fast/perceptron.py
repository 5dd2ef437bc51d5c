r"""A perceptron's step of plain SGD in closed form: what autograd would compute, without a graph.

.. math:: a_i = \mathrm{relu}(W_i a_{i-1} + b_i), \quad z = W_L a_{L-1} + b_L, \quad d_L = (\mathrm{softmax}(z) - y) / N
.. math:: d_{i-1} = W_i^T d_i \, [a_{i-1} > 0], \quad W_i \leftarrow W_i - \eta \, d_i a_{i-1}^T, \quad
          b_i \leftarrow b_i - \eta \, d_i

Law: autograd's step, to the bit; `fused` updates are added inside their matrix products and round otherwise.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from fedlit.fast.permission import for_closed_form, is_plain_batch
from fedlit.fast.recognition import Perceptron
from fedlit.methods.base import FederatedModule

nll_forward = torch.ops.aten.nll_loss_forward.default
nll_backward = torch.ops.aten.nll_loss_backward.default
log_softmax_backward = torch.ops.aten._log_softmax_backward_data.default
relu_backward = torch.ops.aten.threshold_backward.default
MEAN = 1  # how aten numbers a reduction
NO_CLASS = -100  # cross-entropy's default for a target to leave out


class Layers(nn.Module):
    """A perceptron of these tensors, to look at what they have learnt: in evaluation it is what they were taken from.

    Args:
        tensors: Weight and bias of every layer in turn.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        super().__init__()
        self.layers = list(zip(tensors[::2], tensors[1::2], strict=True))

    def forward(self, x: Tensor) -> Tensor:
        a = x.flatten(1)
        for weight, bias in self.layers[:-1]:
            a = F.linear(a, weight, bias).clamp_min_(0)
        return F.linear(a, *self.layers[-1])


class ClosedForm:
    """Steps of a perceptron that is trained on labels alone.

    Args:
        found: The perceptron.
        optimizer: Plain SGD of its parameters, for the learning rate.
        fused: Add a gradient while it is multiplied out: faster, and rounded otherwise.
    """

    def __init__(self, found: Perceptron, optimizer: Optimizer, fused: bool) -> None:
        self.found = found
        self.weights = [weight.detach() for weight in found.weights]
        self.transposed = [weight.t() for weight in self.weights]
        self.biases = [bias.detach() for bias in found.biases]
        self.group = optimizer.param_groups[0]
        self.fused = fused
        self.hidden = list(zip(self.transposed[:-1], self.biases[:-1], strict=True))
        self.one = self.weights[0].new_ones(())
        self.ones = self.weights[0].new_ones(0)

    @classmethod
    def of(cls, learner: FederatedModule, optimizer: Optimizer) -> "ClosedForm | None":
        """For a learner whose step is cross-entropy on one perceptron and nothing else; None for any other."""
        found = for_closed_form(learner, optimizer)
        return None if found is None else cls(found, optimizer, learner.fast)

    def takes(self, batch: tuple[Tensor, ...]) -> bool:
        """Whether a batch is plain; a step on any other is autograd's."""
        return len(batch) == 2 and is_plain_batch(self.found, *batch)

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """One step; the loss before it. Nothing here requires gradients, so that there is no graph to be kept from."""
        a = x.flatten(1)
        inputs = [a]
        for weight, bias in self.hidden:
            a = torch.addmm(bias, a, weight).clamp_min_(0)
            inputs.append(a)
        log_p = torch.addmm(self.biases[-1], a, self.transposed[-1]).log_softmax(1)
        loss, total = nll_forward(log_p, y, None, MEAN, NO_CLASS)
        delta = nll_backward(self.one, log_p, y, None, MEAN, NO_CLASS, total)
        delta = log_softmax_backward(delta, log_p, 1, torch.float32)
        for i in reversed(range(1, len(inputs))):
            below = relu_backward(torch.mm(delta, self.weights[i]), inputs[i], 0)
            self._update(i, delta, inputs[i])
            delta = below
        self._update(0, delta, inputs[0])
        return loss

    def _update(self, i: int, delta: Tensor, a: Tensor) -> None:
        rate = -self.group["lr"]
        down = delta.t()
        if self.fused:
            if len(self.ones) != len(a):
                self.ones = a.new_ones(len(a))
            self.weights[i].addmm_(down, a, alpha=rate)
            self.biases[i].addmv_(down, self.ones, alpha=rate)
        else:
            self.weights[i].add_(torch.mm(down, a), alpha=rate)
            self.biases[i].add_(delta.sum(0), alpha=rate)
