"""What came of a visit, as it is and as containers of tensors, numbers and strings, for other processes."""

from dataclasses import replace
from typing import Any, NamedTuple

import torch

from fedlit.aggregation import State, Upload
from fedlit.engine.plan import Memory, Outcome
from fedlit.engine.scoring.tally import Scores
from fedlit.records.round_record import Failure


class Visited(NamedTuple):
    """What came of a visit, how the trained copy scores, and what is wrong with what was brought.

    `sent` is how many bytes the client was sent, where clients are not all sent the same; `norm` is how far it has
    moved, where somebody asks.
    """

    outcome: Outcome | Failure
    scores: Scores
    problem: Failure | None = None
    sent: int | None = None
    norm: float | None = None


def without_values(visited: Visited) -> Visited:
    """What others may know of a visit: of tensors, names, shapes and dtypes."""
    outcome = visited.outcome
    if isinstance(outcome, Failure):
        return visited
    upload = outcome.upload
    if upload is not None:
        upload = replace(upload, state=_outlines(upload.state))
    memory = Memory(_outlines(outcome.memory.state), {stage: {} for stage in outcome.memory.optimizer})
    return visited._replace(outcome=replace(outcome, upload=upload, memory=memory))


def _outlines(state: State) -> State:
    return {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in state.items()}


def is_sound(visited: Visited) -> bool:
    """Whether what a client has brought can be used."""
    return visited.problem is None


def pack(visited: Visited) -> dict[str, Any]:
    """What came of a visit as containers of tensors, numbers and strings, for other processes."""
    outcome = visited.outcome
    if isinstance(outcome, Failure):
        return {"failed": True, "scores": visited.scores, "sent": visited.sent, **vars(outcome)}
    upload = None if outcome.upload is None else vars(outcome.upload)
    return {
        "failed": False,
        "scores": visited.scores,
        "sent": visited.sent,
        "norm": visited.norm,
        "problem": None if visited.problem is None else vars(visited.problem),
        "upload": upload,
        "memory": vars(outcome.memory),
        "logs": outcome.logs,
        "epochs": outcome.epochs,
        "validation_logs": outcome.validation_logs,
    }


def unpack(packed: dict[str, Any]) -> Visited:
    """And back."""
    scores = packed.pop("scores")
    sent = packed.pop("sent")
    if packed.pop("failed"):
        return Visited(Failure(**packed), scores, sent=sent)
    upload = Upload(**packed["upload"]) if packed["upload"] else None
    memory = Memory(**packed["memory"])
    outcome = Outcome(upload, memory, packed["logs"], packed["epochs"], packed["validation_logs"])
    problem = Failure(**packed["problem"]) if packed["problem"] else None
    return Visited(outcome, scores, problem, sent, packed["norm"])
