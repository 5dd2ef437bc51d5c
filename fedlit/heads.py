"""Networks made of networks: another head, one held apart, weights between two, a gate, one from torchvision.

And which part of a network is its head, or BatchNorm, by kind of layer.
"""

import copy
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from fedlit.bounds import check_count, check_share
from fedlit.inputs import applied
from fedlit.losses import Mix, mixture

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


def linear_layers(network: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Paths and linear layers of a network, in order of `named_modules`; the last of them is taken for its output.

    Example:
        >>> linear_layers(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)))[-1]
        ('2', Linear(in_features=3, out_features=10, bias=True))
    """
    return [(path, part) for path, part in network.named_modules() if isinstance(part, nn.Linear)]


def batch_norm_names(module: nn.Module) -> frozenset[str]:
    """Names of the BatchNorm layers' entries in a module's state: weights and statistics.

    Example:
        >>> sorted(batch_norm_names(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, affine=False))))
        ['1.num_batches_tracked', '1.running_mean', '1.running_var']
    """
    found: set[str] = set()
    for path, part in module.named_modules():
        if isinstance(part, BATCH_NORMS):
            found |= {f"{path}.{name}".lstrip(".") for name in part.state_dict()}
    return frozenset(found)


def head_names(network: nn.Module, layers: int) -> frozenset[str]:
    """Names of the head in the network's state: its last linear layers, in order of `named_modules`.

    Args:
        network: Must have something beside its head.
        layers: Linear layers of the head, `model.head_layers`; with 0 there is none.

    Example:
        >>> sorted(head_names(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)), 1))
        ['2.bias', '2.weight']
    """
    check_count("model.head_layers", layers, least=0)
    linear = linear_layers(network)
    check_head(network, layers)
    paths = tuple(f"{path}." for path, _ in linear[len(linear) - layers :])
    state = network.state_dict(keep_vars=True)
    head = {name for name in state if name.startswith(paths)}
    if len(head) == len(state):
        raise ValueError(
            f"`model.head_layers` {layers} is all that {type(network).__name__} has: nothing would travel."
        )
    of_the_head = {id(state[name]) for name in head}
    for name, tensor in state.items():
        if id(tensor) in of_the_head and name not in head:
            raise ValueError(
                f"`model.network`: {type(network).__name__} has {name!r} both in its head and in its body."
            )
    return frozenset(head)


def check_head(network: nn.Module, layers: int, option: str = "model.network") -> None:
    """Refuse a head of more linear layers than the network holds.

    Args:
        network: As its user built it.
        layers: Linear layers of the head.
        option: Where the network was given, as the user typed it.
    """
    linear = linear_layers(network)
    if linear and linear[-1][0] == "":  # the network is one itself, and nothing comes before it
        linear = []
    if len(linear) < layers:
        kind = type(network).__name__
        raise ValueError(f"`{option}`: {kind} must hold linear layers for a head, {layers}, and has {len(linear)}.")


def with_outputs(network: nn.Module, number: int) -> nn.Module:
    """The network with a new last linear layer of so many outputs, drawn at random; the rest is as it was.

    Example:
        >>> with_outputs(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)), 1)[2]
        Linear(in_features=3, out_features=1, bias=True)
    """
    path, last = _inner_last_linear(network)
    head = nn.Linear(last.in_features, number, bias=last.bias is not None)
    _replace(network, path, head.to(last.weight))
    return network


def with_projection(network: nn.Module, width: int) -> nn.Module:
    """The network with two new layers before its last linear one, which is drawn anew behind them (MOON).

    Example:
        >>> with_projection(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)), 8)[2]
        Sequential(
          (0): Linear(in_features=3, out_features=3, bias=True)
          (1): ReLU()
          (2): Linear(in_features=3, out_features=8, bias=True)
          (3): Linear(in_features=8, out_features=10, bias=True)
        )
    """
    path, last = _inner_last_linear(network)
    features = last.in_features
    projection = [nn.Linear(features, features), nn.ReLU(), nn.Linear(features, width)]
    output = nn.Linear(width, last.out_features, bias=last.bias is not None)
    _replace(network, path, nn.Sequential(*projection, output).to(last.weight))
    return network


def last_linear(network: nn.Module) -> tuple[str, nn.Linear]:
    """Path and layer of the last linear layer of a network, which computes its outputs from features.

    Example:
        >>> last_linear(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)))
        ('2', Linear(in_features=3, out_features=10, bias=True))
    """
    linear = linear_layers(network)
    if not linear:
        raise ValueError(f"the network {type(network).__name__} must hold a linear layer as its last.")
    return linear[-1]


def _inner_last_linear(network: nn.Module) -> tuple[str, nn.Linear]:
    """One that can be replaced."""
    path, last = last_linear(network)
    if path == "":
        raise ValueError(
            f"the network {type(network).__name__} must hold a linear layer as its last, to be given another head."
        )
    return path, last


def _replace(network: nn.Module, path: str, part: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(network.get_submodule(parent), name, part)


def with_features(network: nn.Module, x: Any) -> tuple[Tensor, Any]:
    """The inputs of the last linear layer, ``[N, D]``, and the network's outputs.

    Example:
        >>> network = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10))
        >>> features, z = with_features(network, torch.zeros(5, 2, 2))
        >>> features.shape, z.shape
        (torch.Size([5, 3]), torch.Size([5, 10]))
    """
    given: list[Tensor] = []

    def listen(layer: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        given.append(inputs[0])

    _, last = last_linear(network)
    handle = last.register_forward_pre_hook(listen)
    try:
        z = applied(network, x)
    finally:
        handle.remove()
    if not given:
        raise ValueError(f"the last linear layer of {type(network).__name__} takes no part in its `forward`.")
    return given[-1].flatten(1), z


class Placeholder(nn.Module):
    """Takes the place of a layer that is a submodule of another module."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self._layer = [layer]  # in a list, so that it is no submodule of this one

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:  # some networks read the weight of a layer of theirs
            return getattr(self._layer[0], name)

    def forward(self, x: Tensor) -> Tensor:
        return self._layer[0](x)


class Headed(nn.Module):
    """A network whose last linear layers are held apart as `head`, so that their names do not depend on the rest.

    Args:
        network: Its other layers are the `body`.
        layers: Linear layers of the head, the last in order of `named_modules`.

    Example:
        >>> list(Headed(nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 10)), 1).state_dict())
        ['body.0.weight', 'body.0.bias', 'head.0.weight', 'head.0.bias']
    """

    def __init__(self, network: nn.Module, layers: int) -> None:
        super().__init__()
        found = linear_layers(network)[-layers:]
        for path, layer in found:
            _replace(network, path, Placeholder(layer))
        self.body = network
        self.head = nn.ModuleList([layer for _, layer in found])

    def forward(self, x: Any, /) -> Any:
        return applied(self.body, x)


class Mixed(nn.Module):
    """A network with the weights alpha v + (1 - alpha) w of two networks of one architecture.

    Args:
        network: ``w``, which receives no gradient; ``v`` starts as its copy, and has its own statistics of BatchNorm.
        alpha: In [0, 1]; 0 is ``w``, 1 is ``v``, to the bit.
    """

    def __init__(self, network: nn.Module, alpha: float) -> None:
        super().__init__()
        self.w = network
        self.v = copy.deepcopy(network)
        self.alpha: Tensor
        self.register_buffer("alpha", torch.tensor(float(alpha)))

    def forward(self, x: Any, /, alpha: Tensor | None = None) -> Any:
        weight = self.alpha if alpha is None else alpha
        w = dict(self.w.named_parameters())
        between = {name: torch.lerp(w[name].detach(), v, weight) for name, v in self.v.named_parameters()}
        return applied(self.v, x, between)


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

    def experts_and_gate(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits of f_l and f_g, ``[N, C]``, and of the gate h, ``[N, 1]``, which a variant may compute otherwise."""
        return self.local_expert(x), self.global_expert(x), self.gate(x)

    def forward(self, x: Tensor) -> Tensor:
        return mixture(*self.experts_and_gate(x), self.mix)

    def summary(self, batches: Iterable[tuple[Tensor, ...]]) -> dict[str, float]:
        """Mean and spread of the gate, and each expert's own accuracy."""
        like = next(self.parameters())
        parts = []
        for x, y in batches:
            f_l, f_g, gate = self.experts_and_gate(x.to(like))
            local_right = (f_l.argmax(dim=1) == y).float()
            global_right = (f_g.argmax(dim=1) == y).float()
            parts.append(torch.stack([gate.sigmoid().flatten(), local_right, global_right]))
        h, local_right, global_right = torch.cat(parts, dim=1)
        return {
            "gate": float(h.mean()),
            "gate_sd": float(h.std(correction=0)),
            "local_expert_acc": float(local_right.mean()),
            "global_expert_acc": float(global_right.mean()),
        }


class FixedGate(nn.Module):
    """A gate with the same output for every sample, which never learns: a control for the mixture of experts.

    Args:
        h: The local expert's weight in [0, 1]; 1 is the local expert alone, 0.5 counts both alike.

    Example:
        >>> FixedGate(0.5)(torch.ones(2, 1, 28, 28)).sigmoid().flatten()
        tensor([0.5000, 0.5000])
    """

    CERTAIN = 200.0  # the sigmoid of this is 1 to the bit, and 1 minus it 0, in single precision

    def __init__(self, h: float = 0.5) -> None:
        super().__init__()
        share = check_share("h", h)
        self.logit: Tensor
        self.register_buffer("logit", torch.tensor(share).logit().clamp(-self.CERTAIN, self.CERTAIN))

    def forward(self, x: Tensor) -> Tensor:
        return self.logit.expand(len(x), 1)


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
            raise ValueError(f"`weights` {weights!r} of {name} cannot be loaded: {reason}") from error
        with_outputs(self.network, num_classes)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        return self.network(x)
