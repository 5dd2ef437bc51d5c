"""Training and evaluation mode of a network's parts, which may have a `train` of their own."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

Modes = list[tuple[nn.Module, bool]]


def modes_of(network: nn.Module) -> Modes:
    """Every part of a network, and whether it is in training mode."""
    return [(part, part.training) for part in network.modules()]


def restore_modes(modes: Modes) -> None:
    """Put every part back into its mode; a `train` of its own is called, since it may do more than set one."""
    changed = [(part, was_training) for part, was_training in modes if part.training != was_training]
    for part, was_training in changed:
        if _has_own_train(part):
            part.train(was_training)
    if changed:
        for part, was_training in modes:
            part.training = was_training


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """In evaluation mode within; afterwards every part is in its own mode again."""
    modes = modes_of(network)
    network.eval()
    try:
        yield
    finally:
        restore_modes(modes)


def settle_modes(network: nn.Module) -> None:
    """Let parts with a `train` of their own say what they keep in evaluation mode; what is in it already stays so."""
    own = [part for part in network.modules() if part.training and _has_own_train(part)]
    if not own:
        return
    before = modes_of(network)
    for part in own:
        part.train()
    for part, was_training in before:
        part.training = part.training and was_training


def left_in_evaluation(network: nn.Module) -> list[str]:
    """Names of the parts in evaluation mode, the outermost of each; not of those that a `train` of its own keeps so."""
    found: list[str] = []
    known: list[str] = []  # what is below these need not be named
    for name, part in network.named_modules():
        if any(name.startswith(f"{above}.") for above in known):
            continue
        if not part.training:
            found.append(name)
        if _has_own_train(part) or not part.training:
            known.append(name)
    return found


def _has_own_train(part: nn.Module) -> bool:
    return getattr(part.train, "__func__", None) is not nn.Module.train
