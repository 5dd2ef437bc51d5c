r"""Encoders of uploads for `trainer.upload_encoder`: fewer bytes from a client to the server.

An encoder turns a client's state w, and the state w_0 that the server has sent it, into tensors; from these and w_0 the
server decodes the client's state:

    Float16   w' = w_0 + half(w - w_0)
    Int8      w' = w_0 + s round((w - w_0) / s),  s = max |w - w_0| / 127 of each tensor
              Alistarh et al., 2017, round at random, up or down, such that the mean is right: https://arxiv.org/abs/1610.02132
    TopK      w' = w at the places of each tensor where |w - w_0| is largest, w_0 elsewhere
              Aji and Heafield, 2017. https://arxiv.org/abs/1704.05021

What is lost can be added to the client's next upload (*error feedback*: Seide et al., 2014; Stich et al.,
2018, https://arxiv.org/abs/1809.07599; Karimireddy et al., 2019, https://arxiv.org/abs/1901.09847):

    v = w + e,    w' = decode(encode(v)),    e <- v - w'

Invariants: `TopK(fraction=1.0)` loses not a bit; with error feedback all that was decoded and what is left over add up
to all that a client has learned; `Int8` is never further away than half a step s.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from fedlit.aggregation import State
from fedlit.bounds import check_kind, check_number

OPTION = "trainer.upload_encoder"
STEPS = 127  # of int8, to each side
MOST_OF_INT32 = 2**31


class Encoder(ABC):
    """Base of encoders, and of your own: two functions without state."""

    error_feedback: bool = False
    """Whether what is lost is kept by the client and added to its next upload."""

    @abstractmethod
    def encode(self, state: State, before: State, draw: torch.Generator) -> Any:
        """The tensors to send, in dicts or lists, all of which the ledger counts.

        Args:
            state: The parameters that are shared and trained, by name.
            before: The same as the client was sent them.
            draw: For random numbers; a CPU generator of this client and round.
        """

    @abstractmethod
    def decode(self, encoded: Any, before: State) -> State:
        """The client's state on the server, with every name of `before`; an error leaves the client out."""


def check_sendable(content: Any) -> None:
    """Refuse what cannot be counted, or read by another process without running code.

    Example:
        >>> check_sendable({"w": [torch.zeros(1), 0.5]})
        Traceback (most recent call last):
        ValueError: an encoder may send dense tensors in dicts, lists and tuples, got float
    """
    if isinstance(content, Tensor) and content.layout == torch.strided:
        return
    is_dict = type(content) is dict and all(isinstance(key, str | int) for key in content)
    if not is_dict and type(content) not in (list, tuple):
        raise ValueError(f"an encoder may send dense tensors in dicts, lists and tuples, got {type(content).__name__}")
    for part in content.values() if is_dict else content:
        check_sendable(part)


class Float16(Encoder):
    """The update in half precision: half of the bytes of single precision.

    Args:
        error_feedback: Add what is lost to the client's next upload; costs a copy of the model per client.

    Example:
        >>> encoder = Float16()
        >>> sent = encoder.encode({"w": torch.tensor([1.1])}, {"w": torch.ones(1)}, torch.Generator())
        >>> sent["w"], encoder.decode(sent, {"w": torch.ones(1)})["w"]
        (tensor([0.1000], dtype=torch.float16), tensor([1.1000]))
    """

    def __init__(self, error_feedback: bool = False) -> None:
        self.error_feedback = _switch("error_feedback", error_feedback)

    def encode(self, state: State, before: State, draw: torch.Generator) -> State:
        return {name: _update(tensor, before[name]).to(torch.float16) for name, tensor in state.items()}

    def decode(self, encoded: Mapping[str, Tensor], before: State) -> State:
        found: State = {}
        for name, start in before.items():
            update = _checked(encoded[name], name, torch.float16, start.shape)
            found[name] = _moved(start, update)
        return found


class Int8(Encoder):
    """The update in 255 steps of one size in each tensor: a quarter of the bytes of single precision.

    Args:
        stochastic: Round up or down at random, such that the mean is right; else to the nearest step.
        error_feedback: Add what is lost to the client's next upload; costs a copy of the model per client.

    Example:
        >>> encoder = Int8()
        >>> sent = encoder.encode({"w": torch.tensor([127.0, -50.25])}, {"w": torch.zeros(2)}, torch.Generator())
        >>> sent["w"]["steps"], encoder.decode(sent, {"w": torch.zeros(2)})["w"]
        (tensor([127, -50], dtype=torch.int8), tensor([127., -50.]))
    """

    def __init__(self, stochastic: bool = False, error_feedback: bool = False) -> None:
        self.stochastic = _switch("stochastic", stochastic)
        self.error_feedback = _switch("error_feedback", error_feedback)

    def encode(self, state: State, before: State, draw: torch.Generator) -> dict[str, State]:
        return {name: self._in_steps(_update(tensor, before[name]), draw) for name, tensor in state.items()}

    def _in_steps(self, update: Tensor, draw: torch.Generator) -> State:
        smallest = torch.finfo(update.dtype).tiny
        scale = (update.abs().max() / STEPS).clamp_min(smallest)  # an update of zeros has a step, too
        exact = update / scale
        if self.stochastic:
            chance = torch.rand(exact.shape, generator=draw).to(exact.device)
            steps = (exact + chance).floor()
        else:
            steps = exact.round()
        return {"steps": steps.clamp(-STEPS, STEPS).to(torch.int8), "scale": scale}

    def decode(self, encoded: Mapping[str, State], before: State) -> State:
        found: State = {}
        for name, start in before.items():
            steps = _checked(encoded[name]["steps"], name, torch.int8, start.shape)
            scale = _checked(encoded[name]["scale"], name, _wide(start), torch.Size([]))
            if not scale.isfinite():
                raise ValueError(f"the scale of {name!r} is not finite")
            found[name] = _moved(start, steps * scale)
        return found


class TopK(Encoder):
    """The values at the places of each tensor that have moved furthest, and these places.

    Of places that have moved as far, the first are taken: the same on every processor.

    Args:
        fraction: Of the values of a tensor, in (0, 1], and one at least; with its place a value takes twice its bytes,
            so that half of them save nothing.
        error_feedback: Add what is not sent to the client's next upload; costs a copy of the model per client. Without
            it, what moves slowly never arrives.

    Example:
        >>> encoder = TopK(fraction=0.5)
        >>> sent = encoder.encode({"w": torch.tensor([2.0, -3.0, 3.0, 3.0])}, {"w": torch.ones(4)}, torch.Generator())
        >>> sent["w"]["places"], encoder.decode(sent, {"w": torch.ones(4)})["w"]
        (tensor([1, 2], dtype=torch.int32), tensor([ 1., -3.,  3.,  1.]))
    """

    def __init__(self, fraction: float = 0.01, error_feedback: bool = True) -> None:
        if not 0 < check_number(f"{OPTION}.fraction", fraction) <= 1:
            raise ValueError(f"`{OPTION}.fraction` must lie in (0, 1], got {fraction}.")
        self.fraction = fraction
        self.error_feedback = _switch("error_feedback", error_feedback)

    def encode(self, state: State, before: State, draw: torch.Generator) -> dict[str, State]:
        return {name: self._furthest(tensor, before[name]) for name, tensor in state.items()}

    def _furthest(self, tensor: Tensor, start: Tensor) -> State:
        values = tensor.flatten()
        distances = _update(tensor, start).flatten().abs()
        number = max(1, int(self.fraction * len(values)))
        places = largest_places(distances, number)
        kind = torch.int32 if len(values) <= MOST_OF_INT32 else torch.int64
        return {"places": places.to(kind), "values": values[places]}

    def decode(self, encoded: Mapping[str, State], before: State) -> State:
        found: State = {}
        for name, start in before.items():
            places = _checked_places(encoded[name]["places"], name, start.numel())
            values = _checked(encoded[name]["values"], name, start.dtype, places.shape)
            moved = start.flatten().clone()
            moved[places] = values
            found[name] = moved.view(start.shape)
        return found


def largest_places(values: Tensor, number: int) -> Tensor:
    """The places of the largest values of ``[N]``, in rising order; of equals the first, and nan is the largest.

    Example:
        >>> largest_places(torch.tensor([1.0, 4.0, 2.0, 2.0, 2.0]), 3)
        tensor([1, 2, 3])
    """
    known = values.nan_to_num(nan=torch.inf, posinf=torch.inf)
    least = known.topk(number, sorted=False).values.min()  # which of equals `topk` takes depends on the processor
    above = (known > least).nonzero().flatten()
    equal = (known == least).nonzero().flatten()
    return torch.cat([above, equal[: number - len(above)]]).sort().values


def _wide(tensor: Tensor) -> torch.dtype:
    """In which an update is computed: at least single precision."""
    return torch.promote_types(tensor.dtype, torch.float32)


def _update(tensor: Tensor, start: Tensor) -> Tensor:
    return tensor.to(_wide(start)) - start.to(_wide(start))


def _moved(start: Tensor, update: Tensor) -> Tensor:
    return (start.to(_wide(start)) + update.to(_wide(start))).to(start.dtype)


def _checked(tensor: Tensor, name: str, dtype: torch.dtype, shape: torch.Size) -> Tensor:
    if tensor.shape != shape or tensor.dtype != dtype:
        wanted = f"{tuple(shape)} {dtype}"
        raise ValueError(f"what is sent of {name!r} must be {wanted}, got {tuple(tensor.shape)} {tensor.dtype}")
    return tensor


def _checked_places(places: Tensor, name: str, size: int) -> Tensor:
    """Whole numbers in rising order, each of a value."""
    if places.dim() != 1 or places.dtype not in (torch.int32, torch.int64):
        raise ValueError(
            f"places of {name!r} must be a list of whole numbers, got {tuple(places.shape)} {places.dtype}"
        )
    places = places.long()
    if len(places) and (places[0] < 0 or places[-1] >= size or (places.diff() <= 0).any()):
        raise ValueError(f"places of {name!r} must rise within 0 and {size - 1}")
    return places


def _switch(name: str, value: bool) -> bool:
    check_kind(f"{OPTION}.{name}", value, bool, "true or false")
    return value
