"""What a round of clients does: visit them, check and record what they bring, agree on a new state."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from fedlit.aggregation import State, Upload, defect, num_bytes
from fedlit.data.client import SERVER
from fedlit.engine.agreement import combining_by, sealed
from fedlit.engine.client_store import Memories
from fedlit.engine.epoch_scores import EpochScores, is_followed
from fedlit.engine.log_sinks import noted
from fedlit.engine.plan import Interrupted, Memory, Outcome, Plan
from fedlit.engine.private_rounds import noised
from fedlit.engine.processes import in_order
from fedlit.engine.scores import Scores, evaluate
from fedlit.engine.state import FederationState
from fedlit.engine.usage import UsageError
from fedlit.engine.visit import visit
from fedlit.fast.stacked_visits import Cohort, perceptron_names
from fedlit.records.round_record import Failure, RoundRecord, all_failed, failure
from fedlit.records.rows import POOLED, EpochRow, LedgerRow, Row
from fedlit.rng import derive, isolated


class ClientRound:
    """One round of clients.

    Args:
        state: Of the federation; nothing of it changes before the end of the round.
        number: Of the round, from 1.
        clients: In the order of their ids; under `trainer.privacy` there may be none.
        plan_for: How a client trains; all belong to one stage.
        score: Evaluate every client's copy right after its training.
        tell: Called with position and number of clients before each visit.
    """

    def __init__(
        self,
        state: FederationState,
        number: int,
        clients: list[int],
        plan_for: Callable[[int], Plan],
        score: bool,
        tell: Callable[[int, int], None],
    ) -> None:
        self.state = state
        self.number = number
        self.clients = clients
        self.plan_for = plan_for
        self.stage = plan_for(clients[0] if clients else SERVER).stage
        self.score = score and self.stage.upload == "aggregate"
        self.tell = tell
        self.record = RoundRecord()
        self.memories = Memories(state.memories.store)
        self.collected: dict[int, State] = {}

    def train(self) -> RoundRecord:
        """Visit the clients and let the server agree on a new state; a client that fails is left out and named."""
        uploads = self._uploads()
        agreed = self._aggregated(uploads) if self.stage.upload == "aggregate" else self.state.global_state
        for upload in uploads:  # where nothing is aggregated nobody asked for them; a rule may also stop early
            if self.stage.upload == "collect":
                self.collected[upload.client] = upload.state
        failures = self.record.failures
        if failures and len(failures) == len(self.clients) and (len(self.clients) > 1 or self.state.round == 0):
            raise all_failed(failures)
        self.state.end_client_round(agreed, self.memories, self.collected)
        return self.record

    def _aggregated(self, uploads: Iterator[Upload]) -> State:
        """What the method makes of the uploads; what the server holds if there are none."""
        current = self.state.global_state
        options = self.state.options
        first = next(uploads, None)
        if first is None and options.privacy is None:
            return current
        found = uploads if first is None else chain([first], uploads)
        rule = options.aggregator or noised(self.state, self.stage, self.number)
        copy = {name: tensor.clone() for name, tensor in current.items()}
        module = self.state.module
        seed = derive(options.seed, "aggregate", self.stage.name, self.number)
        with isolated(seed), noted(module) as logs, combining_by(module, rule):
            agreed = {**current, **module.aggregate(sealed(found, options), copy)}
        for name, value in logs.result().items():
            self.record.rows.append(Row(self.number, self.stage.name, POOLED, "global", "server", name, value))
        if problem := defect(Upload(-1, agreed), current):
            raise RuntimeError(f"`aggregate` of {type(module).__name__} gave an impossible state: {problem}.")
        return agreed

    def _uploads(self) -> Iterator[Upload]:
        """Visit clients in order; record what they bring, keep what stays with them, pass on what is sound."""
        cohort = self._cohort()

        def work(k: int) -> tuple[Outcome | Failure, Scores]:
            self.tell(self.clients.index(k) + 1, len(self.clients))
            return self._visit(k, cohort)

        for k, (outcome, scores) in in_order(self.state.fabric, self.clients, work, _pack, _unpack):
            self.record.clients.append(k)
            self._note_download(k)
            if isinstance(outcome, Failure):
                self.record.failures[k] = outcome
                continue
            if outcome.upload is not None:
                self._note(k, "up", "model", num_bytes(outcome.upload.state))
            if problem := self._problem(outcome):
                self.record.failures[k] = Failure(f"unusable state: {problem}")
                continue
            self._keep(k, outcome, scores)
            if outcome.upload is not None:
                yield outcome.upload
        self.state.load_global()  # what `aggregate` may read of the module is the server's, on every process

    def _cohort(self) -> Cohort | None:
        """Visits that may be worked ahead side by side."""
        if not self.clients:
            return None
        state = self.state
        server = state.shared_state
        names = perceptron_names(state.fabric, state.module, self.plan_for(self.clients[0]), server)
        if not names:
            return None
        client_of = partial(state.data.client, round=self.number)
        enter = partial(state.enter, prefer="server", round=self.number)
        return Cohort(state.fabric, state.module, self.clients, self.plan_for, client_of, enter, server, names)

    def _visit(self, k: int, cohort: Cohort | None) -> tuple[Outcome | Failure, Scores]:
        state = self.state
        memory = state.memories.get(k) or Memory()
        try:
            outcome = None if cohort is None else cohort.outcome(k, memory)
            if outcome is None:
                outcome = self._ordinary_visit(k, memory)
            elif self.score and outcome.upload is not None:
                state.live.put(outcome.upload.state)
            return outcome, self._scores(k)
        except (Interrupted, UsageError):  # a method's mistake would be every client's
            raise
        except Exception as error:  # whatever a client does, the round goes on without it
            state.live.mend()
            return failure(error), {}

    def _ordinary_visit(self, k: int, memory: Memory) -> Outcome:
        state = self.state
        state.enter(k, "server" if self.stage.upload == "aggregate" else "personal", self.number)
        client = state.data.client(k, self.number)
        plan = self.plan_for(k)
        every = state.options.eval_every_n_epochs
        if every is None or not is_followed(self.stage):
            return visit(state.fabric, state.module, client, plan, state.shared, memory)
        followed = EpochScores(state, self.stage, client, every)
        plan = replace(plan, after_epoch=followed)
        outcome = visit(state.fabric, state.module, client, plan, state.shared, memory)
        outcome.epochs = followed.values
        return outcome

    def _scores(self, k: int) -> Scores:
        """Of the copy that a client has just trained."""
        if not self.score:
            return {}
        state = self.state
        network = (self.stage.module or state.module).global_model()
        client = state.data.client(k, self.number)
        with isolated(derive(state.options.seed, "trained", self.stage.name, self.number, k)):
            return evaluate(state.fabric, network, client.val_batches(), state.options.metrics)

    def _problem(self, outcome: Outcome) -> str | None:
        """What is wrong with an upload, or with what a client would keep; what is collected differs in its shapes."""
        sent = outcome.upload
        if sent is not None:
            expected = sent.state if self.stage.upload == "collect" else self.state.shared_state
            if problem := defect(sent, expected):
                return problem
        kept = outcome.memory.state
        return defect(Upload(-1, kept), kept)

    def _keep(self, k: int, outcome: Outcome, scores: Scores) -> None:
        memory = outcome.memory
        if memory.state or memory.optimizer or k in self.state.memories:  # it may have given all away
            self.memories[k] = memory
        self._check_names(outcome.validation_logs)
        for data, values in (("train", outcome.logs), ("own", outcome.validation_logs | scores)):
            for name, value in values.items():
                self.record.rows.append(Row(self.number, self.stage.name, k, "trained", data, name, value))
        model = self.stage.reported_as or "personal"
        for epoch, data, name, value in outcome.epochs:
            self.record.epochs.append(EpochRow(self.number, self.stage.name, epoch, k, model, data, name, value))

    def _check_names(self, validation_logs: dict[str, float]) -> None:
        """What a method measures on a client's own samples is told apart from what the federation does."""
        for name in {"acc", "loss", *self.state.options.metrics} & validation_logs.keys():
            raise UsageError(
                f"`self.log({name!r}, ...)` in validation: the federation measures {name!r} on the same samples; "
                "log under another name."
            )

    def _note_download(self, k: int) -> None:
        state = self.state
        is_new = state.stage is None or state.stage.upload == "aggregate"  # later a client has the last one
        if state.shared and (self.stage.upload == "aggregate" or is_new):
            self._note(k, "down", "model", num_bytes(state.shared_state))
        if self.stage.public != "no":
            self._note(k, "down", "public pool", state.data.public_pool.num_bytes)

    def _note(self, k: int, direction: str, kind: str, size: int) -> None:
        self.record.ledger.append(LedgerRow(self.number, k, direction, kind, size))


def _pack(result: tuple[Outcome | Failure, Scores]) -> dict[str, Any]:
    """A result as containers of tensors, numbers and strings, for other processes."""
    outcome, scores = result
    if isinstance(outcome, Failure):
        return {"failed": True, "scores": scores, **vars(outcome)}
    upload = None if outcome.upload is None else vars(outcome.upload)
    return {
        "failed": False,
        "scores": scores,
        "upload": upload,
        "memory": vars(outcome.memory),
        "logs": outcome.logs,
        "epochs": outcome.epochs,
        "validation_logs": outcome.validation_logs,
    }


def _unpack(packed: dict[str, Any]) -> tuple[Outcome | Failure, Scores]:
    scores = packed.pop("scores")
    if packed.pop("failed"):
        return Failure(**packed), scores
    upload = Upload(**packed["upload"]) if packed["upload"] else None
    memory = Memory(**packed["memory"])
    return Outcome(upload, memory, packed["logs"], packed["epochs"], packed["validation_logs"]), scores
