"""What came of a visit, as it is and as containers of tensors, numbers and strings, for other processes."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedlit.aggregation import State, Upload
from fedlit.engine.plan import Memory, Outcome
from fedlit.engine.rounds.encoding import Encoded, check_sendable
from fedlit.engine.scoring.tally import Scores
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure, reported


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
        "skipped": outcome.skipped,
        "overflowed": outcome.overflowed,
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
    logged = (packed["logs"], packed["epochs"], packed["validation_logs"])
    outcome = Outcome(upload, memory, *logged, packed.get("skipped", 0), packed.get("overflowed", 0))
    return Visited(outcome, scores, problem, sent, encoded, packed["norm"])


def received(
    packed: dict[str, Any], stage: Stage, client: int, decode: Callable[[int, Encoded], State] | None = None
) -> Visited:
    """As `unpack`, from a client's own process or host, which might have sent anything.

    Raises unless every part is of the kind that it must be. Whose it is, what the client was sent and how far it has
    moved is known or computed here, whatever is said of it. Names, shapes and values of tensors, and weights, are
    validated after this, as every client's are.
    """
    if packed["failed"]:
        return Visited(reported(packed), {})
    for part in ("scores", "logs", "validation_logs"):
        if not all(isinstance(name, str) and isinstance(value, float) for name, value in packed[part].items()):
            raise ValueError(f"`{part}` must be numbers by name.")
    for epoch, data, metric, value in packed["epochs"]:
        if not (isinstance(epoch, int) and isinstance(value, float) and isinstance(data, str)):
            raise ValueError(f"`epochs` must be of numbers, got {epoch!r}, {metric!r}, {value!r}.")
    for part in ("skipped", "overflowed"):  # hosts of version 0.2 do not say
        if not isinstance(packed.get(part, 0), int):
            raise ValueError(f"`{part}` must be a number of steps, got {packed[part]!r}.")
    _check_memory(packed["memory"])
    problem = packed["problem"] and vars(reported(packed["problem"]))
    upload = packed["upload"]
    if problem is None and (upload is None) != (stage.upload == "none"):
        raise ValueError(f"stage {stage.name!r} has {'no' if stage.upload == 'none' else 'an'} upload.")
    if upload is not None:
        _check_upload(upload, packed["encoded"], decode is not None)
        upload = {**upload, "client": client}
    return unpack({**packed, "upload": upload, "problem": problem, "sent": None, "norm": None}, decode)


def _check_upload(upload: dict[str, Any], encoded: dict[str, Any] | None, is_encoded: bool) -> None:
    _check_state(upload["state"], "an upload")
    if not isinstance(upload["weight"], float):
        raise ValueError(f"the weight of an upload must be a number, got {upload['weight']!r}.")
    if (encoded is not None) != is_encoded:
        raise ValueError(f"an upload must {'be encoded' if is_encoded else 'not be encoded'}.")
    if encoded is not None:
        check_sendable(encoded["content"])
        _check_state(encoded["plain"], "what is not encoded of an upload")


def _check_memory(memory: dict[str, Any]) -> None:
    for part in ("state", "residual"):
        _check_state(memory.get(part, {}), "what a client keeps")
    for kept in memory.get("optimizer", {}).values():
        if not isinstance(kept, dict):
            raise ValueError("what a client keeps of its optimisers must be by name of the parameter.")


def _check_state(state: Any, what: str) -> None:
    is_named = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    if not (is_named and all(isinstance(value, Tensor) for value in state.values())):
        raise ValueError(f"{what} must be tensors by name.")
