"""What came of a visit, as it is and as containers of tensors, numbers and strings, for other processes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlit.aggregation import State, Upload
from fedlit.engine.plan import Memory, Outcome
from fedlit.engine.rounds.encoding import Encoded
from fedlit.engine.scoring.tally import Scores
from fedlit.engine.usage import UsageError
from fedlit.records.round_record import Failure


class Visited(NamedTuple):
    """What came of a visit, how the trained copy scores, and what is wrong with what was brought.

    `sent` is how many bytes the client was sent, where clients are not all sent the same; `encoded` is what has left
    it, where uploads are encoded, and the outcome then holds what the server makes of it; `norm` is how far it has
    moved, where somebody asks.
    """

    outcome: Outcome | Failure
    scores: Scores
    problem: Failure | None = None
    sent: int | None = None
    encoded: Encoded | None = None
    norm: float | None = None


def without_values(visited: Visited) -> Visited:
    """What others may know of a visit: of tensors, names, shapes and dtypes."""
    outcome = visited.outcome
    if isinstance(outcome, Failure):
        return visited
    upload = outcome.upload
    if upload is not None:
        upload = replace(upload, state=_outlines(upload.state))
    memory = outcome.memory
    outlined = Memory(_outlines(memory.state), {stage: {} for stage in memory.optimizer}, _outlines(memory.residual))
    encoded = visited.encoded
    if encoded is not None:
        encoded = Encoded(_outlines(encoded.content), _outlines(encoded.plain))
    return visited._replace(outcome=replace(outcome, upload=upload, memory=outlined), encoded=encoded)


def _outlines(sent: Any) -> Any:
    """Of tensors in containers."""
    if isinstance(sent, Tensor):
        return torch.empty(sent.shape, dtype=sent.dtype, device="meta")
    if isinstance(sent, Mapping):
        return {name: _outlines(part) for name, part in sent.items()}
    return [_outlines(part) for part in sent]


def is_sound(visited: Visited) -> bool:
    """Whether what a client has brought can be used."""
    return visited.problem is None


def pack(visited: Visited) -> dict[str, Any]:
    """What came of a visit as containers of tensors, numbers and strings, for other processes.

    An encoded upload is passed on as it was sent.
    """
    outcome = visited.outcome
    if isinstance(outcome, Failure):
        return {"failed": True, "scores": visited.scores, "sent": visited.sent, **vars(outcome)}
    upload = None if outcome.upload is None else dict(vars(outcome.upload))
    if upload is not None and visited.encoded is not None:
        upload["state"] = {}
    return {
        "failed": False,
        "scores": visited.scores,
        "sent": visited.sent,
        "norm": visited.norm,
        "problem": None if visited.problem is None else vars(visited.problem),
        "upload": upload,
        "encoded": None if visited.encoded is None else visited.encoded._asdict(),
        "memory": vars(outcome.memory),
        "logs": outcome.logs,
        "epochs": outcome.epochs,
        "validation_logs": outcome.validation_logs,
    }


def unpack(packed: dict[str, Any], decode: Callable[[int, Encoded], State] | None = None) -> Visited:
    """And back.

    Args:
        packed: From `pack`.
        decode: From what a client has sent to the state that it stands for, if uploads are encoded.
    """
    scores = packed.pop("scores")
    sent = packed.pop("sent")
    if packed.pop("failed"):
        return Visited(Failure(**packed), scores, sent=sent)
    upload = Upload(**packed["upload"]) if packed["upload"] else None
    problem = Failure(**packed["problem"]) if packed["problem"] else None
    encoded = Encoded(**packed["encoded"]) if packed["encoded"] else None
    if encoded is not None and decode is not None and upload is not None and problem is None:
        upload = replace(upload, state=decode(upload.client, encoded))
    memory = Memory(**packed["memory"])
    outcome = Outcome(upload, memory, packed["logs"], packed["epochs"], packed["validation_logs"])
    return Visited(outcome, scores, problem, sent, encoded, packed["norm"])


def hint(problem: str) -> str:
    """What may be behind a problem."""
    return " (is the lr too high, or the scale of the inputs?)" if problem.endswith("is not finite") else ""


def check_names(validation_logs: Mapping[str, float], measured: Iterable[str]) -> None:
    """What a method measures on a client's own samples is told apart from what the federation does."""
    for name in set(measured) & validation_logs.keys():
        raise UsageError(
            f"`self.log({name!r}, ...)` in validation: the federation measures {name!r} on the same samples; "
            "log under another name."
        )
