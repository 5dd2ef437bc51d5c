"""Many networks that answer together without living all at once, and how a student is taught by them."""

from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fedlit.aggregation import State
from fedlit.inputs import applied
from fedlit.losses import teacher_weights
from fedlit.records import checkpoint

Confidence = Callable[[Tensor, Tensor], Tensor]
"""From inputs and targets (-1 where they are hidden) to ``[K, N]``."""


class Ensemble:
    """Networks of many clients: one live network per architecture, into which the clients' states are loaded in turn.

    Args:
        uploads: States by client id.
        prefix: What the names of the networks' entries begin with.
        build: Gives a client's network; it is called once per architecture.
        architecture: Clients for which this is equal share a live network.
        device: Where it answers.
    """

    def __init__(
        self,
        uploads: Mapping[int, State],
        prefix: str,
        build: Callable[[int], nn.Module],
        architecture: Callable[[int], object],
        device: torch.device,
    ) -> None:
        live: dict[object, nn.Module] = {}
        self.members: list[tuple[nn.Module, State]] = []
        for k in sorted(uploads):
            state = {name.removeprefix(prefix): t for name, t in uploads[k].items() if name.startswith(prefix)}
            if not state:
                raise ValueError(f"client {k} has uploaded no {prefix.rstrip('.')!r}; was its aggregator another?")
            key = architecture(k)
            if key not in live:
                live[key] = build(k).requires_grad_(False).eval().to(device)
            self.members.append((live[key], state))

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """What all say of a batch, ``[K, N, C]``, in the order of their ids."""
        answers = [applied(network, x, state) for network, state in self.members]
        return torch.stack(answers)


class Teachers:
    """Class probabilities ``[N, C]`` of a batch, from classifiers that count by their confidence ``[K, N]``."""

    def __init__(self, classifiers: Ensemble, confidence: Confidence, temperature: float) -> None:
        self.classifiers = classifiers
        self.confidence = confidence
        self.temperature = temperature

    def __call__(self, x: Tensor, y: Tensor) -> Tensor:
        w = teacher_weights(self.confidence(x, y), self.temperature)
        p = self.classifiers(x).softmax(dim=2)
        return (w[:, :, None] * p).sum(dim=0)


def optimal_confidence(p: Tensor, public_shares: Tensor) -> Tensor:
    r"""What the best density classifier would say of a class, ``[K, C]``.

    .. math:: C_i^*(y) = \frac{p_i(y)}{p_i(y) + p_{dist}(y)}

    Args:
        p: Probability of each class at each client, ``[K, C]``.
        public_shares: Fraction of each class in the public pool, ``[C]``.

    Example:
        >>> optimal_confidence(torch.tensor([[0.5, 0.0]]), torch.tensor([0.1, 0.1]))
        tensor([[0.8333, 0.0000]])
    """
    return (p / (p + public_shares)).nan_to_num()  # a class that nobody has


def uploads_of(earlier: str | None, device: torch.device) -> dict[int, State]:
    """What every client uploaded in an earlier run, as its checkpoint holds it; nothing without one."""
    if earlier is None:
        return {}
    content = checkpoint.load(Path(earlier), "model.earlier", allowed="a checkpoint file")
    if not content["collected"]:
        raise ValueError(f"`model.earlier` {earlier} holds no client's uploads.")
    uploads = {}
    for k, state in content["collected"].items():
        uploads[k] = {name: tensor.to(device) for name, tensor in state.items()}
    return uploads
