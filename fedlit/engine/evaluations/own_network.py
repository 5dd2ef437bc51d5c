"""A network that predicts, taken out of the federation: a copy with nothing of ours around it."""

import copy
from collections.abc import Mapping
from typing import Any

import torch
from lightning.fabric.utilities import move_data_to_device
from torch import Tensor, nn

from fedlit.data.preprocessing import preprocessing
from fedlit.engine.evaluations.evaluation import Scorer
from fedlit.engine.evaluations.loading import loaded
from fedlit.engine.module.precision import convert_input
from fedlit.fast.memory import lay_out
from fedlit.methods.base import FederatedModule
from fedlit.methods.states import twin


def own_network(scorer: Scorer, client: int | None, with_preprocessing: bool) -> nn.Module:
    """What `predict` uses, as a copy on the CPU in evaluation mode."""
    network = loaded(scorer, client)
    data = scorer.state.data
    x = next(iter(data.test_batches(client).first(2)))[0]
    if with_preprocessing and not isinstance(x, Tensor):
        raise ValueError(f"`with_preprocessing` is for inputs that are one tensor, these are a {type(x).__name__}.")
    if isinstance(network, FederatedModule):
        fabric = scorer.state.fabric
        network = behind(network, convert_input(fabric, move_data_to_device(x, fabric.device)))
    own = _copied(network).cpu().eval()
    lay_out(own, torch.contiguous_format)
    for parameter in own.parameters():
        parameter.grad = None
    if not with_preprocessing:
        return own
    floating = [p.dtype for p in own.parameters() if p.is_floating_point()]
    steps = preprocessing(data, client, floating[0] if floating else torch.float32)
    return nn.Sequential(steps, own).eval()


@torch.no_grad()
def behind(method: FederatedModule, x: Any) -> nn.Module:
    """The part of a method that does all that its `forward` does; the method itself if `forward` does more.

    It is known by what it does: it is given the very inputs of `forward`, what it returns is returned, and by itself it
    returns the same: a method may lend it other weights (`torch.func.functional_call`).
    """
    heard: list[tuple[nn.Module, Any]] = []

    def listen(part: nn.Module, given: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
        if _is_given(x, given, named):
            heard.append((part, output))

    parts = [part for part in method.modules() if not isinstance(part, FederatedModule)]
    handles = [part.register_forward_hook(listen, with_kwargs=True) for part in parts]
    was_training = method.training
    try:
        result = method.eval()(x)
        found = [part for part, output in heard if output is result]
        alike = [part for part in found if torch.equal(part(x), result)]
    finally:
        method.train(was_training)
        for handle in handles:
            handle.remove()
    return alike[-1] if alike else method  # the last to end is the outermost


def _is_given(x: Any, given: tuple[Any, ...], named: dict[str, Any]) -> bool:
    """Whether a part was called with these inputs and nothing else, as they are or spread."""
    if len(given) == 1 and given[0] is x and not named:
        return True
    wanted = [x]
    if isinstance(x, Mapping):
        wanted = [*x.values()]
    elif isinstance(x, tuple | list):
        wanted = [*x]
    heard = [*given, *named.values()]
    return len(heard) == len(wanted) and all(a is b for a, b in zip(heard, wanted, strict=True))


def _copied(network: nn.Module) -> nn.Module:
    if not isinstance(network, FederatedModule):
        return copy.deepcopy(network)
    own = twin(network)
    own.fabric = None  # they belong to the federation
    for part in own.modules():
        if isinstance(part, FederatedModule):
            part.client = None
    return own
