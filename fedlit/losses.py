"""Losses: tensors in, a scalar out, one equation each."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

# Widths of the kernel that FedMMD's authors took from domain separation networks; a width is a variance.
FIXED_WIDTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1, 5, 10, 15, 20, 25, 30, 35, 100, 1e3, 1e4, 1e5, 1e6)

Mix = Literal["log_prob", "prob", "logits"]
PrototypeReduction = Literal["mean", "sum"]


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
    if not mu >= 0:
        raise ValueError(f"`mu` pulls towards the global model and must be at least 0, got {mu}.")
    w = list(parameters)
    if not w:
        return 0.0
    moved = torch._foreach_sub(w, _matching(anchors, w))
    return mu / 2 * torch.stack([difference.square().sum() for difference in moved]).sum()


@torch.no_grad()
def proximal_gradient(parameters: Iterable[Tensor], anchors: Iterable[Tensor], mu: float) -> list[Tensor]:
    r"""The gradient of `proximal_penalty`: :math:`\mu (w_i - w^t_i)`.

    Example:
        >>> from torch import tensor
        >>> proximal_gradient([tensor([3.0, 1.0])], [tensor([1.0, 0.0])], mu=0.5)
        [tensor([1.0000, 0.5000])]
    """
    w = list(parameters)
    if not w:
        return []
    moved = list(torch._foreach_sub(w, _matching(anchors, w)))
    torch._foreach_mul_(moved, mu)
    return moved


@torch.no_grad()
def add_to_gradients(parameters: Iterable[Tensor], directions: Iterable[Tensor]) -> None:
    r"""Add a term's known gradient to those of the loss: :math:`g_i \leftarrow g_i + d_i`.

    For `on_before_optimizer_step`, where gradients are there and not clipped yet: a term of the loss costs a node of
    the graph and a copy of the network in every step. Without any gradient there is no step, and nothing is added. The
    loss does not have the term: an optimiser that compares losses, as by a line search, needs it there.

    Args:
        parameters: Trained.
        directions: ``d``, of the same shapes.

    Example:
        >>> w = torch.tensor([3.0], requires_grad=True)
        >>> w.square().sum().backward()
        >>> add_to_gradients([w], [torch.tensor([-2.0])])
        >>> w.grad
        tensor([4.])
    """
    w = list(parameters)
    d = _matching(directions, w)
    if all(parameter.grad is None for parameter in w):
        return
    gradients: Any = []
    for parameter in w:
        if parameter.grad is None:  # the loss did not reach it
            parameter.grad = torch.zeros_like(parameter)
        elif parameter.grad.is_sparse:  # the term is dense
            parameter.grad = parameter.grad.to_dense()
        gradients.append(parameter.grad)
    torch._foreach_add_(gradients, d)


def _matching(constants: Iterable[Tensor], parameters: list[Tensor]) -> list[Tensor]:
    """Constants of the shapes of the parameters: others would be broadcast."""
    found = list(constants)
    for parameter, constant in zip(parameters, found, strict=True):
        if parameter.shape != constant.shape:
            shapes = f"{tuple(parameter.shape)} of a parameter, got {tuple(constant.shape)}"
            raise ValueError(f"anchors and directions must have the shapes of the parameters: {shapes}.")
    return found


def labelled_cross_entropy(logits: Tensor, target: Tensor, ignore_index: int) -> Tensor:
    r"""Cross-entropy, the mean over what has a label; 0 where nothing has one.

    .. math:: L = \frac{\sum_i [y_i \ne ignored] \, \mathrm{CE}(p_i, y_i)}{\max(1, \sum_i [y_i \ne ignored])}

    Args:
        logits: ``[N, C, ...]``.
        target: Class indices ``[N, ...]``.
        ignore_index: The target of what has no label.

    Example:
        >>> from torch import tensor
        >>> labelled_cross_entropy(tensor([[0.0, 0.0], [9.0, 0.0]]), tensor([1, -1]), ignore_index=-1)
        tensor(0.6931)
    """
    total = F.cross_entropy(logits, target, ignore_index=ignore_index, reduction="sum")
    return total / (target != ignore_index).sum().clamp_min(1)


def kl_divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    r"""How far a network is from its peer.

    .. math:: D_{KL}(q \,\|\, p) = \frac{1}{N} \sum_n \sum_c q_{nc} (\log q_{nc} - \log p_{nc})

    Args:
        log_p: Log-probabilities ``[N, C]``.
        log_q: The peer's, ``[N, C]``.

    Example:
        >>> kl_divergence(torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.9, 0.1]]).log())
        tensor(0.3681)
    """
    return F.kl_div(log_p, log_q, reduction="batchmean", log_target=True)  # "mean" would divide by C too


def mutual_loss(
    logits: Tensor,
    peer_logits: Tensor,
    target: Tensor,
    weight: float,
    imitation_loss: Callable[[Tensor, Tensor], Tensor] = kl_divergence,
) -> Tensor:
    r"""Learn from the labels and from a peer network.

    .. math:: L = w \, \mathrm{CE}(p, y) + (1 - w) \, D_{KL}(q \,\|\, p)

    with :math:`p = \mathrm{softmax}(z)` trained and :math:`q = \mathrm{softmax}(z_{peer})` held constant.

    Args:
        logits: ``z``, ``[N, C]``.
        peer_logits: ``z_peer``, ``[N, C]``; receives no gradient.
        target: ``y``, class indices ``[N]``.
        weight: ``w`` in [0, 1]; 1 is cross-entropy alone, 0 is imitation alone.
        imitation_loss: Another function of ``log p`` and ``log q`` in place of the Kullback-Leibler divergence.

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
    return weight * F.nll_loss(log_p, target) + (1 - weight) * imitation_loss(log_p, log_q)


def model_contrastive(z: Tensor, z_glob: Tensor, z_prev: Tensor, temperature: float = 0.5) -> Tensor:
    r"""Draw features to one network's and away from another's.

    .. math:: -\log \frac{e^{s(z, z_{glob}) / T}}{e^{s(z, z_{glob}) / T} + e^{s(z, z_{prev}) / T}}

    with :math:`s` the cosine; the mean over samples. Where both others agree it is :math:`\log 2`.

    Args:
        z: ``[N, D]``, trained.
        z_glob: ``[N, D]``; receives no gradient.
        z_prev: ``[N, D]``; receives no gradient.
        temperature: ``T``, above 0; small separates the two sharply.

    Example:
        >>> model_contrastive(torch.tensor([[1.0, 0.0]]), torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]]), 0.5)
        tensor(0.1269)
    """
    if not temperature > 0:
        raise ValueError(f"`temperature` must be above 0, got {temperature}.")
    positive = F.cosine_similarity(z, z_glob.detach(), dim=1)
    negative = F.cosine_similarity(z, z_prev.detach(), dim=1)
    return F.softplus((negative - positive) / temperature).mean()


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
        kernel: ``fixed`` sums 19 widths s from 1e-6 to 1e6; ``adaptive`` takes five, spread by
            factors of 2 around the mean squared distance, which receives no gradient, and
            exp(-d / s).

    Example:
        >>> round(float(mmd(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))), 4)  # 2 * sum_s (1 - exp(-25 / 2 s))
        21.6548
    """
    return _MMD.apply(a, b, kernel)


class _MMD(torch.autograd.Function):
    """`mmd` with its gradient worked out: the kernels are the work, and both need the same ones."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor, kernel: str) -> Tensor:
        n = len(a)
        # Distances by the Gram matrix, in double: its rounding error in float would drown widths down to 1e-6.
        joint = torch.cat([a, b]).double()
        squares = joint.square().sum(dim=1)
        d = (squares[:, None] + squares[None, :] - 2 * joint @ joint.T).clamp_min(0)
        if kernel == "fixed":
            scales = 2 * d.new_tensor(FIXED_WIDTHS)
        else:
            mean = d.sum() / max(len(joint) * (len(joint) - 1), 1)
            scales = (mean / 4).clamp_min(1e-8) * 2 ** torch.arange(5, device=d.device)
        precision = torch.promote_types(a.dtype, torch.float)
        d = d.to(precision)
        rates = (1 / scales).to(precision)[:, None, None]
        # Smaller numbers than exp(-80) add nothing, and those that underflow cost thirty times as much.
        kernels = (d * -rates).clamp_min_(-80).exp_()
        k = kernels.sum(dim=0)
        # With x = joint and c its rows' signs and weights, MMD = sum_ij c_i c_j k(d_ij), d_ij = |x_i - x_j|^2.
        c = torch.cat([joint.new_full((n,), 1 / n), joint.new_full((len(b),), -1 / len(b))])
        slope = kernels.mul_(rates).sum(dim=0).double().fill_diagonal_(0)  # of -k, by d
        slope.mul_(c[:, None] * c)
        ctx.save_for_backward(4 * (slope @ joint - slope.sum(dim=1, keepdim=True) * joint))
        ctx.n = n
        ctx.dtypes = (a.dtype, b.dtype)
        return k[:n, :n].mean() + k[n:, n:].mean() - 2 * k[:n, n:].mean()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        if torch.is_grad_enabled():  # else its part of a second derivative would be missing without a word
            raise RuntimeError("`mmd` can be differentiated once; it cannot be with `create_graph=True`.")
        joint = ctx.saved_tensors[0] * grad
        dtype_a, dtype_b = ctx.dtypes
        return joint[: ctx.n].to(dtype_a), joint[ctx.n :].to(dtype_b), None


def class_sums(values: Tensor, target: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Sums of the values of each class, ``[C, D]``, and how many there are, ``[C]``.

    Args:
        values: ``[N, D]``.
        target: Class indices ``[N]``.
        num_classes: ``C``.

    Example:
        >>> class_sums(torch.tensor([[1.0], [2.0], [5.0]]), torch.tensor([0, 0, 2]), 3)
        (tensor([[3.],
                [0.],
                [5.]]), tensor([2, 0, 1]))
    """
    members = F.one_hot(target, num_classes)
    return members.T.to(values) @ values, members.sum(dim=0)


def prototype_distance(
    features: Tensor,
    target: Tensor,
    prototypes: Tensor,
    known: Tensor,
    reduction: PrototypeReduction = "mean",
) -> Tensor:
    r"""How far the features of a batch are from the prototypes of their classes.

    .. math:: \frac{1}{N D} \sum_n \| f_n - \bar C^{y_n} \|^2, \quad \sum_{j} \| C^j - \bar C^j \|^2

    `mean` is the first, over samples and features; a sample whose class has no prototype counts 0. `sum` is the second,
    over the classes of the batch that have a prototype, with :math:`C^j` the mean of their features.

    Args:
        features: ``f``, ``[N, D]``.
        target: ``y``, class indices ``[N]``.
        prototypes: One for each class, ``[C, D]``; they receive no gradient.
        known: Whether there is one, ``[C]``.
        reduction: Which of the two; `sum` grows with D.

    Example:
        >>> features = torch.tensor([[1.0, 0.0], [3.0, 0.0], [7.0, 7.0]])
        >>> batch = features, torch.tensor([0, 0, 1]), torch.zeros(2, 2), torch.tensor([True, False])
        >>> prototype_distance(*batch), prototype_distance(*batch, reduction="sum")
        (tensor(1.6667), tensor(4.))
    """
    prototypes = prototypes.detach()
    if reduction == "mean":
        return ((features - prototypes[target]).square() * known[target][:, None]).mean()
    sums, counts = class_sums(features, target, len(prototypes))
    means = sums / counts.clamp_min(1)[:, None]
    distances = (means - prototypes).square().sum(dim=1)
    return (distances * (known & (counts > 0))).sum()


def mixture(z_local: Tensor, z_global: Tensor, gate: Tensor, mix: Mix = "log_prob") -> Tensor:
    r"""Two experts under a gate: a log-probability per class, or with `logits` a logit.

    .. math:: h \log p_l + (1 - h) \log p_g, \quad \log(h p_l + (1 - h) p_g), \quad h z_l + (1 - h) z_g

    Args:
        z_local: Logits ``[N, C]``.
        z_global: Logits ``[N, C]``.
        gate: Logit ``[N, 1]`` of ``h``, the weight of the local expert.
        mix: Which of the three; the first is not normalised.

    Example:
        >>> mixture(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 4.0]]), torch.tensor([[0.0]]), "logits")
        tensor([[1., 2.]])
    """
    if gate.shape[1:] != (1,):
        raise ValueError(f"a gate must give one output, got {list(gate.shape[1:])}.")
    h = gate.sigmoid()
    if mix == "logits":
        return h * z_local + (1 - h) * z_global
    log_p_local = F.log_softmax(z_local, dim=1)
    log_p_global = F.log_softmax(z_global, dim=1)
    if mix == "log_prob":
        return h * log_p_local + (1 - h) * log_p_global
    return torch.logaddexp(F.logsigmoid(gate) + log_p_local, F.logsigmoid(-gate) + log_p_global)


def density_loss(z: Tensor, own: Tensor, weight: float = 1.5) -> Tensor:
    r"""Separate own samples from public ones: binary cross-entropy in which an own sample counts more.

    .. math:: -\frac{1}{N} \sum_n \begin{cases} w \log \sigma(z_n) & \text{own} \\ \log (1 - \sigma(z_n)) \end{cases}

    At the optimum :math:`\sigma(z) = w n_i p_i / (w n_i p_i + n_{dist} p_{dist})`.

    Args:
        z: Logits ``[N]``.
        own: Whether each sample is the client's own, ``[N]``.
        weight: Of an own sample; 1 is plain cross-entropy.

    Example:
        >>> density_loss(torch.zeros(2), torch.tensor([True, False]), weight=3.0) / torch.tensor(2.0).log()
        tensor(2.)
    """
    weights = torch.where(own, weight, 1.0)
    return F.binary_cross_entropy_with_logits(z, own.to(z.dtype), weights.to(z.dtype))


def teacher_weights(confidence: Tensor, temperature: float = 0.05) -> Tensor:
    r"""The weight of each teacher for each sample, by its confidence.

    .. math:: w_i(x) = \frac{\exp(C_i(x) / T)}{\sum_j \exp(C_j(x) / T)}

    Args:
        confidence: ``C`` in [0, 1], ``[K, N]`` for K teachers and N samples.
        temperature: ``T``; large is the mean of all teachers.

    Example:
        >>> teacher_weights(torch.tensor([[0.1], [0.1]])).flatten()
        tensor([0.5000, 0.5000])
    """
    return (confidence / temperature).softmax(dim=0)


def soft_cross_entropy(z: Tensor, target: Tensor) -> Tensor:
    r"""Cross-entropy against probabilities.

    .. math:: -\frac{1}{N} \sum_n \sum_c t_{nc} \log \mathrm{softmax}(z_n)_c

    Args:
        z: Logits ``[N, C]``.
        target: ``t``, ``[N, C]``; receives no gradient.

    Example:
        >>> soft_cross_entropy(torch.zeros(1, 2), torch.tensor([[0.3, 0.7]])) / torch.tensor(2.0).log()
        tensor(1.)
    """
    return F.cross_entropy(z, target.detach())


def distillation_loss(z: Tensor, teacher: Tensor) -> Tensor:
    r"""How far a student is from its teacher.

    .. math:: \frac{1}{N} \sum_n D_{KL}(\mathrm{softmax}(t_n) \,\|\, \mathrm{softmax}(z_n))

    Args:
        z: The student's logits, ``[N, C]``.
        teacher: ``t``, logits ``[N, C]``; receives no gradient.

    Example:
        >>> distillation_loss(torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 2.0]]))
        tensor(1.5232)
    """
    return kl_divergence(F.log_softmax(z, dim=1), F.log_softmax(teacher.detach(), dim=1))
