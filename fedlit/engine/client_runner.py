"""Local training of the clients of a round on this process, and its results as other processes and hosts see them."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from lightning_utilities.core.apply_func import apply_to_collection
from torch import Tensor

from fedlit.aggregation import State, Upload, num_bytes
from fedlit.encoders import check_sendable
from fedlit.engine.child_process import in_child
from fedlit.engine.encoding import Encoded, Encoding
from fedlit.engine.evaluation import EpochScores, scores_of_trained_copy
from fedlit.engine.live_module import check_unchanged, client_failure, without_frozen
from fedlit.engine.local_training import train_client
from fedlit.engine.local_training_setup import LocalTrainingSetup
from fedlit.engine.metrics import Scores
from fedlit.engine.plan import ClientState, Interrupted, LocalResult, Plan, UsageError
from fedlit.engine.state import Download, FederationState
from fedlit.engine.uploads import UploadValidator, hint
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure, reported


def has_download(state: FederationState, stage: Stage) -> bool:
    """Whether clients of a stage are sent anything in the next round; else they go on with what they have."""
    return stage.upload == "aggregate" or state.stage is None or state.stage.upload == "aggregate"


class ClientResult(NamedTuple):
    """What came of a client's training, how the trained copy scores, and why the client is left out, if it is.

    Without an `outcome` the training failed. `sent` is how many bytes the client was sent, where clients are not all
    sent the same; `encoded` is what has left it, where uploads are encoded, and the outcome then holds what the server
    makes of it.
    """

    outcome: LocalResult | None
    scores: Scores
    problem: Failure | None = None
    sent: int | None = None
    encoded: Encoded | None = None


LOGGED = ("logs", "epochs", "validation_logs", "skipped", "overflowed")  # of a `LocalResult`


def pack(result: ClientResult) -> dict[str, Any]:
    """A result as containers of tensors, numbers and strings, for other processes.

    An encoded upload is passed on as it was sent.
    """
    outcome = result.outcome
    problem = None if result.problem is None else vars(result.problem)
    if outcome is None:
        return {"failed": True, "scores": result.scores, "sent": result.sent, **(problem or {})}
    upload = None if outcome.upload is None else dict(vars(outcome.upload))
    if upload is not None and result.encoded is not None:
        upload["state"] = {}
    return {
        "failed": False,
        "scores": result.scores,
        "sent": result.sent,
        "problem": problem,
        "upload": upload,
        "encoded": None if result.encoded is None else result.encoded._asdict(),
        "memory": vars(outcome.client_state),
        **{name: getattr(outcome, name) for name in LOGGED},
    }


def without_values(packed: dict[str, Any]) -> dict[str, Any]:
    """What other ranks may know of a packed result: of tensors, shapes and dtypes."""
    return apply_to_collection(packed, Tensor, lambda t: torch.empty(t.shape, dtype=t.dtype, device="meta"))


def unpack(packed: dict[str, Any], decode: Callable[[int, Encoded], State] | None = None) -> ClientResult:
    """And back.

    Args:
        packed: From `pack`.
        decode: From what a client has sent to the state that it stands for, if uploads are encoded.
    """
    scores = packed.pop("scores")
    sent = packed.pop("sent")
    if packed.pop("failed"):
        return ClientResult(None, scores, Failure(**packed), sent)
    upload = Upload(**packed["upload"]) if packed["upload"] else None
    problem = Failure(**packed["problem"]) if packed["problem"] else None
    encoded = Encoded(**packed["encoded"]) if packed["encoded"] else None
    if encoded is not None and decode is not None and upload is not None and problem is None:
        upload = replace(upload, state=decode(upload.client, encoded))
    outcome = LocalResult(upload, ClientState(**packed["memory"]), **{name: packed[name] for name in LOGGED})
    return ClientResult(outcome, scores, problem, sent, encoded)


def unpack_untrusted(
    packed: dict[str, Any], stage: Stage, client: int, decode: Callable[[int, Encoded], State] | None = None
) -> ClientResult:
    """As `unpack`, from a client's own process or host, which might have sent anything.

    Raises unless every part is of the kind that it must be. Whose it is and what the client was sent is known here,
    whatever is said of it. Names, shapes and values of tensors, and weights, are validated after this, as every
    client's are.
    """
    if packed["failed"]:
        return ClientResult(None, {}, reported(packed))
    for part in ("scores", "logs", "validation_logs"):
        if not all(isinstance(name, str) and isinstance(value, float) for name, value in packed[part].items()):
            raise ValueError(f"`{part}` must be numbers by name.")
    for epoch, data, metric, value in packed["epochs"]:
        if not (isinstance(epoch, int) and isinstance(value, float) and isinstance(data, str)):
            raise ValueError(f"`epochs` must be of numbers, got {epoch!r}, {metric!r}, {value!r}.")
    for part in ("skipped", "overflowed"):
        if not isinstance(packed[part], int):
            raise ValueError(f"`{part}` must be a number of steps, got {packed[part]!r}.")
    _check_client_state(packed["memory"])
    problem = packed["problem"] and vars(reported(packed["problem"]))
    upload = packed["upload"]
    if problem is None and (upload is None) != (stage.upload == "none"):
        raise ValueError(f"stage {stage.name!r} has {'no' if stage.upload == 'none' else 'an'} upload.")
    if upload is not None:
        _check_upload(upload, packed["encoded"], decode is not None)
        upload = {**upload, "client": client}
    return unpack({**packed, "upload": upload, "problem": problem, "sent": None}, decode)


def _check_upload(upload: dict[str, Any], encoded: dict[str, Any] | None, is_encoded: bool) -> None:
    _check_state(upload["state"], "an upload")
    if not isinstance(upload["weight"], float):
        raise ValueError(f"the weight of an upload must be a number, got {upload['weight']!r}.")
    if (encoded is not None) != is_encoded:
        raise ValueError(f"an upload must {'be encoded' if is_encoded else 'not be encoded'}.")
    if encoded is not None:
        check_sendable(encoded["content"])
        _check_state(encoded["plain"], "what is not encoded of an upload")


def _check_client_state(client_state: dict[str, Any]) -> None:
    for part in ("state", "residual"):
        _check_state(client_state.get(part, {}), "what a client keeps")
    for kept in client_state.get("optimizer", {}).values():
        if not isinstance(kept, dict):
            raise ValueError("what a client keeps of its optimisers must be by name of the parameter.")


def _check_state(state: Any, what: str) -> None:
    is_named = isinstance(state, dict) and all(isinstance(name, str) for name in state)
    if not (is_named and all(isinstance(value, Tensor) for value in state.values())):
        raise ValueError(f"{what} must be tensors by name.")


class ClientRunner:
    """Trains clients of a round in this process, one at a time.

    Args:
        state: Of the federation; nothing of it changes.
        number: Of the round.
        plan_for: How a client trains; all belong to one stage.
        validator: Of uploads.
        encoding: Of uploads, if they are encoded.
        is_scored: Evaluate a client's copy right after its training.
    """

    def __init__(
        self,
        state: FederationState,
        number: int,
        plan_for: Callable[[int], Plan],
        validator: UploadValidator,
        encoding: Encoding | None,
        is_scored: bool,
    ) -> None:
        self.state = state
        self.number = number
        self.plan_for = plan_for
        self.validator = validator
        self.encoding = encoding
        self.is_scored = is_scored
        self.constant = frozenset(state.constant)
        self.before = state.live.snapshot()
        self.setup: LocalTrainingSetup | None = None  # for clients with the method's own networks

    def train(self, k: int) -> ClientResult:
        """What came of a client's training; whatever it does, the round goes on without it."""
        state = self.state
        if not state.has_custom_download or not has_download(state, self.plan_for(k).stage):
            return self._train_guarded(k, None)
        sent = state.download_for(k, self.number)  # by the server: a mistake there is nobody's own
        self._check_has_something(k, sent)
        result = self._train_guarded(k, sent)
        return result._replace(sent=num_bytes({**sent.state, **sent.received}))

    def _check_has_something(self, k: int, sent: Download) -> None:
        """Whoever holds nothing of what is shared would upload nothing, round after round, without a word."""
        state = self.state
        if state.shared and state.expected_upload(k, sent).keys().isdisjoint(state.shared):
            raise UsageError(
                f"`download` of {type(state.module).__name__} sends client {k} nothing of what is shared, and it has "
                "uploaded nothing before: return `current`, or what it is to begin with."
            )

    def _train_guarded(self, k: int, sent: Download | None) -> ClientResult:
        """In a process of its own under `trainer.client_timeout`, which is trusted no more than another host."""
        timeout = self.state.options.client_timeout
        if timeout is None:
            return self._attempt(k, sent)
        decode = None if self.encoding is None else self.encoding.decoded
        stage = self.plan_for(k).stage

        def unpack_validated(packed: dict[str, Any]) -> ClientResult:
            return self.revalidated(unpack_untrusted(packed, stage, k, decode), sent)

        should_stop = self.plan_for(k).should_stop
        result = in_child(partial(self._attempt, k, sent), timeout, should_stop, pack, unpack_validated)
        return ClientResult(None, {}, result) if isinstance(result, Failure) else result

    def _attempt(self, k: int, sent: Download | None) -> ClientResult:
        try:
            return self._train(k, sent)
        except Interrupted:  # the run is asked to stop
            raise
        except (Exception, SystemExit) as error:
            return ClientResult(None, {}, client_failure(error))
        finally:
            self.state.live.restore(self.before)

    def _train(self, k: int, sent: Download | None) -> ClientResult:
        """Load a client's state, train it, score the trained copy, encode and validate its upload."""
        state = self.state
        plan = self.plan_for(k)
        stage = plan.stage
        client = state.data.client(k, self.number)
        client_state = state.client_states.get(k) or ClientState()
        state.load_client(k, "server" if stage.upload == "aggregate" else "personal", self.number, sent, client)
        every = state.options.eval_every_n_epochs
        epoch_scores: EpochScores | None = None
        if every is not None and stage.upload != "aggregate" and stage.reported_as is not None:  # not for a copy
            epoch_scores = EpochScores(state, stage, client, every)
            plan = replace(plan, after_epoch=epoch_scores)
        setup = self._setup(stage)
        trained = train_client(state.fabric, state.module, client, plan, client_state, setup, self.constant)
        if epoch_scores is not None:
            trained.epochs = epoch_scores.values
        if sent is not None and trained.upload is not None:
            trained.upload = self._held(k, trained.upload, sent)
        if self.constant or state.frozen:
            self._forget_frozen(trained)
        scores: Scores = {}
        if self.is_scored:
            if trained.upload is not None:
                trained.upload = trained.upload.copy()  # a forward pass may change live tensors: buffers, embeddings
            scores = scores_of_trained_copy(state, stage, client)
        return self._validated(trained, scores, client_state, sent)

    def _validated(
        self, trained: LocalResult, scores: Scores, client_state: ClientState, sent: Download | None
    ) -> ClientResult:
        encoded = None
        problem = None
        if self.state.options.upload_encoder is not None:
            trained.client_state.residual = client_state.residual
        if self.encoding is not None:
            encoded, problem = self.encoding.send(trained)
            if problem is not None:
                problem.reason += hint(problem.reason)
        problem = problem or self.validator.problem(trained, sent)
        return ClientResult(trained, scores, problem, encoded=encoded)

    def revalidated(self, result: ClientResult, sent: Download | None) -> ClientResult:
        """What another process or host says is valid need not be."""
        if result.outcome is None or result.problem is not None:
            return result
        return result._replace(problem=self.validator.problem(result.outcome, sent))

    def _setup(self, stage: Stage) -> LocalTrainingSetup:
        """Once a round, and for each client that has networks of its own."""
        state = self.state
        if state.live.has_own_networks:
            return LocalTrainingSetup(state.fabric, state.module, stage, state.shared)
        if self.setup is None:
            self.setup = LocalTrainingSetup(state.fabric, state.module, stage, state.shared)
        return self.setup

    def _forget_frozen(self, trained: LocalResult) -> None:
        """What is the same for all, and was so before, is not kept by every client."""
        state = self.state
        constant = state.constant_state
        if constant:
            check_unchanged(state.live.tensors(), constant, "in local training")
        own = {name: tensor for name, tensor in trained.client_state.state.items() if name not in constant}
        trained.client_state.state = without_frozen(own, state.frozen, state.initial)

    def _held(self, k: int, upload: Upload, sent: Download) -> Upload:
        """Of an upload what the client holds: a part of the shared state that it was never sent is not its own."""
        held = self.state.expected_upload(k, sent)
        return replace(upload, state={name: value for name, value in upload.state.items() if name in held})
