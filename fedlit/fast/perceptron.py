r"""A perceptron's step of plain SGD in closed form: what autograd would compute, without a graph.

.. math:: a_i = \mathrm{relu}(W_i a_{i-1} + b_i), \quad z = W_L a_{L-1} + b_L, \quad d_L = (\mathrm{softmax}(z) - y) / N
.. math:: d_{i-1} = W_i^T d_i \, [a_{i-1} > 0], \quad W_i \leftarrow W_i - \eta \, d_i a_{i-1}^T, \quad
          b_i \leftarrow b_i - \eta \, d_i

Law: autograd's step, to the bit; `fused` updates are added inside their matrix products and round otherwise.
"""

from collections.abc import Collection

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.optim import SGD

from fedlit.methods.base import FederatedModule
from fedlit.networks import Network

nll_forward, nll_backward = torch.ops.aten.nll_loss_forward.default, torch.ops.aten.nll_loss_backward.default
log_softmax_backward = torch.ops.aten._log_softmax_backward_data.default
relu_backward = torch.ops.aten.threshold_backward.default
# A step of one's own is unknown here; and no gradient is left for what might look at it afterwards.
STEP = ("training_step", "forward", "on_train_epoch_end", "on_client_end")
MEAN, NO_CLASS = 1, -100  # how aten numbers a reduction, and cross-entropy's default for a target to leave out


def linear_layers(network: nn.Module) -> list[nn.Linear] | None:
    """The layers of a perceptron: linear ones with ReLU between, behind a Flatten; None if it is anything else."""
    leaves = _in_order(network)
    if leaves is None or len(leaves) % 2 or type(leaves[0]) is not nn.Flatten or leaves[0].start_dim != 1:
        return None
    if any(type(leaf) is not (nn.ReLU if i % 2 else nn.Linear) for i, leaf in enumerate(leaves[1:])):
        return None
    layers = leaves[1::2]
    parameters = [parameter for layer in layers for parameter in (layer.weight, layer.bias)]
    is_apart = len({id(parameter) for parameter in parameters}) == len(parameters)
    return layers if is_apart and all(_is_ordinary(parameter) for parameter in parameters) else None


def _in_order(part: nn.Module) -> list[nn.Module] | None:
    """The leaves in the order in which they are run, a repeated one as often; None if that cannot be told."""
    children = list(part._modules.values())
    if is_watched(part) or "forward" in vars(part) or part._compiled_call_impl is not None:
        return None
    if not children:
        return [part]
    is_network = type(part).forward is Network.forward and [*part._modules] == ["extractor", "head"]
    if type(part) is not nn.Sequential and not is_network:
        return None
    parts = [_in_order(child) for child in children]
    return None if any(leaves is None for leaves in parts) else [leaf for leaves in parts for leaf in leaves]


def is_watched(part: nn.Module) -> bool:
    """Whether somebody has hung a hook on a module."""
    return bool(part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks)


def has_global_hooks() -> bool:
    """Whether somebody has hung a hook on all modules; torch's own function for this is younger than torch 2.6."""
    forward = hooks._global_forward_hooks or hooks._global_forward_pre_hooks
    backward = hooks._global_backward_hooks or hooks._global_backward_pre_hooks
    return bool(forward or backward)


def _is_ordinary(parameter: nn.Parameter | None) -> bool:
    if parameter is None or parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
        return False
    return parameter.requires_grad and parameter.dtype == torch.float32 and parameter.is_cpu


def is_changed(method: FederatedModule, names: Collection[str]) -> bool:
    """Whether a method has one of these of its own, by its class or hung on itself."""
    return any(
        name in vars(method) or getattr(type(method), name) is not getattr(FederatedModule, name) for name in names
    )


class ClosedForm:
    """Steps of a perceptron that is trained on labels alone.

    Args:
        layers: From `linear_layers`.
        optimizer: Plain SGD of their parameters, for the learning rate.
        fused: Add a gradient while it is multiplied out: faster, and rounded otherwise.
    """

    def __init__(self, layers: list[nn.Linear], optimizer: SGD, fused: bool) -> None:
        self.weights = [layer.weight.detach() for layer in layers]
        self.transposed = [weight.t() for weight in self.weights]
        self.biases = [layer.bias.detach() for layer in layers]
        self.group, self.fused = optimizer.param_groups[0], fused
        self.one, self.ones = torch.ones(()), torch.ones(0)

    @classmethod
    def of(cls, learner: FederatedModule, optimizer: SGD) -> "ClosedForm | None":
        """For a learner whose step is cross-entropy on one perceptron and nothing else; None for any other."""
        if is_changed(learner, STEP) or not learner.automatic_optimization:
            return None
        if is_watched(learner) or has_global_hooks():
            return None
        layers = linear_layers(learner.global_model())
        if layers is None or learner.wants_index or len(optimizer.param_groups) != 1:
            return None
        trained = {parameter for layer in layers for parameter in (layer.weight, layer.bias)}
        is_all = trained == set(optimizer.param_groups[0]["params"])
        return cls(layers, optimizer, learner.fast) if is_all else None

    @torch.no_grad()
    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        """One step; the loss before it."""
        inputs, rate = [x.flatten(1)], -self.group["lr"]
        for weight, bias in zip(self.transposed[:-1], self.biases, strict=False):
            inputs.append(torch.addmm(bias, inputs[-1], weight).clamp_min_(0))
        log_p = torch.addmm(self.biases[-1], inputs[-1], self.transposed[-1]).log_softmax(1)
        loss, total = nll_forward(log_p, y, None, MEAN, NO_CLASS)
        delta = nll_backward(self.one, log_p, y, None, MEAN, NO_CLASS, total)
        delta = log_softmax_backward(delta, log_p, 1, torch.float32)
        for i in reversed(range(len(inputs))):
            below = relu_backward(torch.mm(delta, self.weights[i]), inputs[i], 0) if i else None
            self._update(i, delta, inputs[i], rate)
            delta = below
        return loss

    def _update(self, i: int, delta: Tensor, a: Tensor, rate: float) -> None:
        down = delta.t()
        if self.fused:
            self.ones = self.ones if len(self.ones) == len(a) else a.new_ones(len(a))
            self.weights[i].addmm_(down, a, alpha=rate)
            self.biases[i].addmv_(down, self.ones, alpha=rate)
        else:
            self.weights[i].add_(torch.mm(down, a), alpha=rate)
            self.biases[i].add_(delta.sum(0), alpha=rate)
