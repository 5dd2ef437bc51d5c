"""Networks made of networks: another head, a head for some classes, a gate between two, one from torchvision."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import get_args

import torch
from torch import Tensor, nn

from fedlit.losses import Mix, mixture


def with_outputs(network: nn.Module, number: int) -> nn.Module:
    """The network with a new last linear layer of so many outputs, drawn at random; the rest is as it was.

    Example:
        >>> with_outputs(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)), 1)[2]
        Linear(in_features=3, out_features=1, bias=True)
    """
    path, last = last_linear(network)
    if path == "":
        raise ValueError(f"{type(network).__name__} must hold a linear layer as its last, to be given another head.")
    parent, _, name = path.rpartition(".")
    head = nn.Linear(last.in_features, number, bias=last.bias is not None)
    setattr(network.get_submodule(parent), name, head.to(last.weight))
    return network


def last_linear(network: nn.Module) -> tuple[str, nn.Linear]:
    """Path and layer of the linear layer that a network holds last: what makes its outputs of features.

    Example:
        >>> last_linear(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)))
        ('2', Linear(in_features=3, out_features=10, bias=True))
    """
    linear = [(path, part) for path, part in network.named_modules() if isinstance(part, nn.Linear)]
    if not linear:
        raise ValueError(f"{type(network).__name__} must hold a linear layer as its last.")
    return linear[-1]


def features_and_outputs(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    """What a network's last linear layer is given, ``[N, D]``, and the network's outputs.

    Example:
        >>> features, z = features_and_outputs(nn.Sequential(nn.ReLU(), nn.Linear(2, 1)), torch.tensor([[-1.0, 5.0]]))
        >>> features, z.shape
        (tensor([[0., 5.]]), torch.Size([1, 1]))
    """
    _, last = last_linear(network)
    given: list[Tensor] = []

    def note(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        given.append(inputs[0])

    hook = last.register_forward_pre_hook(note)
    try:
        z = network(x)
    finally:
        hook.remove()
    if len(given) != 1 or given[0].dim() != 2:
        raise ValueError(f"the last linear layer of {type(network).__name__} must be given features [N, D] once.")
    return given[0], z


class Scattered(nn.Module):
    """A network with an output for some classes only, as logits of all: minus infinity for the others.

    Args:
        network: Gives ``[N, len(classes)]``.
        classes: Which class each output stands for.
        num_classes: Of the task.
    """

    def __init__(self, network: nn.Module, classes: Sequence[int], num_classes: int) -> None:
        super().__init__()
        if len(set(classes)) != len(classes) or not all(0 <= c < num_classes for c in classes):
            raise ValueError(f"`classes` must be different ones from 0 to {num_classes - 1}, got {list(classes)}.")
        self.network = network
        self.num_classes = num_classes
        self.classes: Tensor
        self.register_buffer("classes", torch.tensor(list(classes)))

    def forward(self, x: Tensor) -> Tensor:
        z = self.network(x)
        if z.shape[1] != len(self.classes):
            raise ValueError(f"the network must give {len(self.classes)} outputs, one per class, got {z.shape[1]}.")
        return z.new_full((z.shape[0], self.num_classes), -torch.inf).index_copy(1, self.classes, z)


class Gated(nn.Module):
    """A gate over a local and a global expert; see fedlit.losses.mixture.

    Args:
        local_expert: Gives logits ``[N, C]``.
        global_expert: Gives logits ``[N, C]``.
        gate: Gives the logit ``[N, 1]`` of the local expert's weight.
        mix: What is mixed.
        freeze_global: The global expert neither trains nor drops out.
    """

    def __init__(
        self, local_expert: nn.Module, global_expert: nn.Module, gate: nn.Module, mix: Mix, freeze_global: bool
    ) -> None:
        super().__init__()
        if mix not in get_args(Mix):
            raise ValueError(f"`mix` must be one of {get_args(Mix)}, got {mix!r}.")
        self.local_expert = local_expert
        self.global_expert = global_expert
        self.gate = gate
        self.mix = mix
        self.freeze_global = freeze_global
        global_expert.requires_grad_(not freeze_global)

    def train(self, mode: bool = True) -> "Gated":
        super().train(mode)
        self.global_expert.train(mode and not self.freeze_global)
        return self

    def forward(self, x: Tensor) -> Tensor:
        return mixture(self.local_expert(x), self.global_expert(x), self.gate(x), self.mix)

    def judged(self, batches: Iterable[tuple[Tensor, ...]]) -> dict[str, float]:
        """Does the gate choose, and between what? Its mean and spread, and each expert's own accuracy."""
        like = next(self.parameters())
        parts = []
        for x, y in batches:
            x = x.to(like)
            local_right = (self.local_expert(x).argmax(dim=1) == y).float()
            global_right = (self.global_expert(x).argmax(dim=1) == y).float()
            h = self.gate(x).sigmoid().flatten()
            parts.append(torch.stack([h, local_right, global_right]))
        h, local_right, global_right = torch.cat(parts, dim=1)
        return {
            "gate": float(h.mean()),
            "gate_sd": float(h.std(correction=0)),
            "local_expert_acc": float(local_right.mean()),
            "global_expert_acc": float(global_right.mean()),
        }


class Pretrained(nn.Module):
    """A network of torchvision with its trained weights and a new head; grey images are given three channels.

    Args:
        name: As torchvision calls it, such as resnet18 or densenet121.
        weights: A name that torchvision knows (`DEFAULT`, `IMAGENET1K_V1`), which it downloads, or
            the path of a file with its state; none draws weights at random.
        num_classes: Outputs of the new head.
    """

    def __init__(self, name: str = "resnet18", weights: str | None = "DEFAULT", num_classes: int = 10) -> None:
        # Slow to import.
        from torchvision.models import get_model, list_models  # type: ignore[import-untyped]  # it has no type hints

        super().__init__()
        if name not in list_models():
            raise ValueError(f"`name` must be a model of torchvision, got {name!r}.")
        try:
            if weights is not None and Path(weights).is_file():
                self.network = get_model(name, weights=None)
                self.network.load_state_dict(torch.load(weights, weights_only=True, map_location="cpu"))
            else:
                self.network = get_model(name, weights=weights)
        except Exception as error:  # an unknown name, no network, a damaged or foreign file: each raises its own kind
            reason = (str(error).splitlines() or [""])[0]
            raise ValueError(f"`weights` {weights!r} of {name} cannot be had: {reason}") from error
        with_outputs(self.network, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        return self.network(x)
