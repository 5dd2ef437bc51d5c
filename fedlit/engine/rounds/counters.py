"""Integer tensors of an upload: the largest wins under every rule, so one that nobody can have counted to is refused.

BatchNorm counts one for every batch that it sees in training: a visit's batches, perhaps several times in a step, or
one more pass over all samples. A hundred for every sample of every epoch is more than any of that. What another counter
counts is not known; 2^40 in a visit is more than samples, tokens or pixels.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from fedlit.data.client import Client
from fedlit.engine.plan import Plan

BATCHES = "num_batches_tracked"
BATCHES_A_SAMPLE = 100
MOST = 2**40


def counters_of(state: Mapping[str, Tensor]) -> list[str]:
    """Names of the integer tensors of a state; what is true or false counts nothing."""
    integers = [name for name, tensor in state.items() if not (tensor.is_floating_point() or tensor.is_complex())]
    return [name for name in integers if state[name].dtype != torch.bool]


def most_batches(client: Client, plan: Plan) -> int:
    """How many batches a BatchNorm can have seen in a visit."""
    samples = client.num_samples
    if plan.stage.public != "no":
        samples += len(client.data.public_pool)
    return BATCHES_A_SAMPLE * (samples * max(plan.epochs, 1) + (plan.steps or 0))


def overcounted(state: Mapping[str, Tensor], before: Mapping[str, Tensor], names: list[str], most: int) -> str | None:
    """Which counter has grown by more than a visit can have counted, and by how much.

    Args:
        state: Of an upload.
        before: What its client received.
        names: Of the counters.
        most: Batches that a BatchNorm can have seen.

    Example:
        >>> overcounted({"n": torch.tensor(2**62)}, {"n": torch.tensor(5)}, ["n"], most=100)
        "'n' has grown by 4.612e+18 in one visit, by more than 1.1e+12"
    """
    for name in names:
        if name not in state:  # a client that was not sent all of it does not upload all of it
            continue
        limit = most if name.rpartition(".")[2] == BATCHES else MOST
        grown = float((state[name].double() - before[name].double()).max()) if state[name].numel() else 0.0
        if grown > limit:
            return f"{name!r} has grown by {grown:.4g} in one visit, by more than {limit:.4g}"
    return None
