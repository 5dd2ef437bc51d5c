"""Frozen parameters: what a visit freezes or thaws is so until it ends; what is changed between visits stays."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def thawed_again(module: nn.Module) -> Iterator[None]:
    """Every parameter is trained, or not, afterwards as it was before."""
    before = [(parameter, parameter.requires_grad) for parameter in module.parameters()]
    try:
        yield
    finally:
        for parameter, is_trained in before:
            if parameter.requires_grad != is_trained:
                parameter.requires_grad_(is_trained)
