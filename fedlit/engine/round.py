"""A round: clients train, uploads are validated, aggregated and committed; or the server trains."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.aggregation import State, Upload, defect, num_bytes
from fedlit.data.client import SERVER
from fedlit.engine.aggregation import AggregationResult, aggregate_uploads
from fedlit.engine.client_runner import (
    ClientResult,
    ClientRunner,
    has_download,
    pack,
    unpack,
    without_values,
)
from fedlit.engine.client_store import UploadStore, assign_ranks, gather_collected
from fedlit.engine.encoding import Encoded, encoding_of
from fedlit.engine.lightning_hooks import warn_of_no_loss
from fedlit.engine.live_module import check_still_frozen, restored_requires_grad
from fedlit.engine.local_training import train
from fedlit.engine.metrics import Scores
from fedlit.engine.plan import ClientState, Interrupted, LocalResult, Plan, UsageError
from fedlit.engine.processes import all_gather, broadcast
from fedlit.engine.scheduling import fewest_usable
from fedlit.engine.state import FederationState
from fedlit.engine.uploads import RoundUpdates, UploadValidator
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.progress import Progress
from fedlit.records.round_record import Failure, RoundRecord, failure
from fedlit.records.rows import POOLED, EpochRow, LedgerRow, Row
from fedlit.rng import preserved

DEV_SAMPLES = 64  # a development run trains on so many


class ServerResult(NamedTuple):
    """What the server holds after training, of its optimiser what is kept, and what goes into the `RoundRecord`."""

    state: State
    client_state: ClientState
    rows: list[Row]
    overflowed: dict[int, int]


def serve(state: FederationState, round: int, plan: Plan, progress: Progress) -> RoundRecord:
    """A round of the server's own: it trains what it holds, with what it has collected."""
    if not state.collected:
        raise ValueError(f"Stage {plan.stage.name!r}: no client has uploaded anything for the server to learn from.")
    served = train_server(state, round, plan, state.global_state, gather_collected(state), progress)
    state.end_server_round(served.state, served.client_state)
    return RoundRecord(rows=served.rows, overflowed=served.overflowed)


def train_server(
    state: FederationState, round: int, plan: Plan, held: State, uploads: Mapping[int, State], progress: Progress
) -> ServerResult:
    """Let the first process train on the server, from what it holds; nothing is committed yet.

    Args:
        state: Of the federation.
        round: Its number, from 1.
        plan: How the server trains.
        held: What it starts from.
        uploads: What clients have uploaded, by client id.
        progress: Shows that it trains.
    """
    name = plan.stage.name
    done: dict[str, Any] = {}
    if state.fabric.is_global_zero:
        progress.training(round, "server")
        with state.options.profiler.profile("server"), state.attributes.server_training():
            done = _trained(state, round, plan, held, uploads)
        done["attributes"] = state.attributes.changes()
    done = broadcast(state.fabric, done)
    if not state.fabric.is_global_zero:  # it was not there
        state.attributes.put(done["attributes"])
    if problem := defect(Upload(SERVER, done["state"]), held):
        raise RuntimeError(f"The server's model cannot be used after round {round}: {problem}; is its lr too high?")
    rows = [Row(round, name, POOLED, "global", "public", metric, value) for metric, value in done["logs"].items()]
    overflowed = {SERVER: done["overflowed"]} if done["overflowed"] else {}
    return ServerResult(done["state"], ClientState(optimizer={name: done["momenta"]}), rows, overflowed)


def _trained(
    state: FederationState, round: int, plan: Plan, held: State, uploads: Mapping[int, State]
) -> dict[str, Any]:
    """The server's state after its epochs, of its optimiser what is kept, and what it logged."""
    module = state.module
    server = state.server(round, limit=DEV_SAMPLES if state.options.fast_dev_run else None)
    state.live.reset_modes()
    state.live.load(held)
    try:
        with preserved(), restored_requires_grad(module):
            trained = train(state.fabric, module, server, plan, state.server_training_state, uploads)
    except (UsageError, Interrupted):
        raise
    except Exception as error:
        raise RuntimeError(f"The server could not train in round {round}: {failure(error).reason}") from error
    if trained.skipped:
        warn_of_no_loss(plan.stage.module or module, SERVER, trained.skipped)
    live = module.state_dict()
    momenta = {} if plan.optimizer_state == "reset" else trained.optimizer_state(module, state.server_names)
    after = {name: live[name].clone() for name in state.server_names}
    return {"state": after, "momenta": momenta, "logs": trained.logs, "overflowed": trained.overflowed}


CONSTANT = "constant"  # what is frozen and the same for all
ONE_WAY = "one-way"  # what goes down only, or up only


class Ledger:
    """Bytes that the clients of one round are sent, and send."""

    def __init__(self, state: FederationState, stage: Stage, number: int) -> None:
        self.state = state
        self.number = number
        self.one_way = state.upload_only if stage.upload == "aggregate" else []
        self.model: list[tuple[str, int]] = []  # kind and bytes
        if has_download(state, stage):
            entries = {"model": state.shared_state, ONE_WAY: state.sent_state}
            self.model = [(kind, num_bytes(sent)) for kind, sent in entries.items() if sent]
        self.constant = [(CONSTANT, num_bytes(state.constant_state))] if state.constant else []
        self.pool = [] if stage.public == "no" else [("public pool", state.data.public_pool.num_bytes)]

    def rows(self, k: int, result: ClientResult) -> list[LedgerRow]:
        """Of one client, which is sent what is constant only once; what only goes up stands apart from the model."""
        model = self.model if result.sent is None else [("model", result.sent)]
        constant = [] if k in self.state.received_constants else self.constant
        rows = [LedgerRow(self.number, k, "down", kind, size) for kind, size in (*model, *constant, *self.pool)]
        if result.outcome is None or result.outcome.upload is None:
            return rows
        sent_up = result.encoded or Encoded([], result.outcome.upload.state)
        one_way = num_bytes([sent_up.plain[name] for name in self.one_way if name in sent_up.plain])
        both_ways = num_bytes(sent_up) - one_way
        if both_ways or not one_way:
            rows.append(LedgerRow(self.number, k, "up", "model", both_ways))
        if one_way:
            rows.append(LedgerRow(self.number, k, "up", ONE_WAY, one_way))
        return rows


Results = Iterator[tuple[int, ClientResult]]
Executor = Callable[["ClientRound"], Results]
"""Trains the clients of a round, and gives the validated result of each in the order of client ids."""


def train_here(round: "ClientRound") -> Results:
    """One client after the other, in this process."""
    for position, k in enumerate(round.clients, 1):
        yield k, round.train_client(k, position)


def train_on_processes(round: "ClientRound") -> Results:
    """Clients shared out over the processes of a run; what they return stays on the rank that trained them."""
    fabric = round.state.fabric
    own: dict[int, Any] = {}
    for position, k in enumerate(round.clients, 1):
        if round.updates.owners[k] == fabric.global_rank:
            result = round.train_client(k, position)
            if result.outcome is not None and result.problem is None:
                round.updates.keep(k, result.outcome)
            own[k] = without_values(pack(result))
    packed = all_gather(fabric, own)
    if round.state.options.max_norm_ratio is not None:
        round.updates.norms = all_gather(fabric, round.updates.norms)
    for k in round.clients:
        yield k, unpack(packed[k])


def train_on_hosts(round: "ClientRound") -> Results:
    """Clients on hosts of their own, whose answers are validated here."""
    assert round.state.hosts is not None
    for position, (k, result, sent) in enumerate(round.state.hosts.train(round), 1):
        round.progress.training(round.number, f"client {position}/{len(round.clients)}")
        yield k, round.runner.revalidated(result, sent)


class ClientRound:
    """One round of clients.

    Args:
        state: Of the federation; nothing of it changes before the end of the round.
        number: Of the round, from 1.
        stage: Of the round.
        plans: How each client trains, in the order of their ids; under `trainer.privacy` there may be none.
        score: Evaluate every client's copy right after its training.
        progress: Shows who trains.
        follow_up: How the server trains on what was aggregated and on the uploads, before the round is over.
    """

    def __init__(
        self,
        state: FederationState,
        number: int,
        stage: Stage,
        plans: Mapping[int, Plan],
        score: bool,
        progress: Progress,
        follow_up: Plan | None = None,
    ) -> None:
        self.state = state
        self.number = number
        self.stage = stage
        self.clients = list(plans)
        self.progress = progress
        self.follow_up = follow_up
        self.record = RoundRecord(is_whole=False)
        self.accepted: dict[int, tuple[LocalResult, Scores]] = {}
        self.ledger = Ledger(state, stage, number)
        check_still_frozen(state.module, state.constant)
        plan_for = plans.__getitem__
        validator = UploadValidator(state, stage, number, plan_for)
        encoding = encoding_of(state, stage, number)
        state.module.stage = stage
        is_scored = score and stage.upload == "aggregate"
        self.runner = ClientRunner(state, number, plan_for, validator, encoding, is_scored)
        owners = {}
        if state.fabric.world_size > 1:
            owners = dict(zip(self.clients, assign_ranks(state, self.clients), strict=True))
        self.updates = RoundUpdates(state, stage, self._needs_buffer(), owners)

    def run(self) -> RoundRecord:
        """Train the clients, aggregate their valid updates, commit; with too few of them the state stays as it was."""
        train_clients = self._executor()
        with preserved():
            for k, result in train_clients(self):
                self.record.clients.append(k)
                self.record.ledger += self.ledger.rows(k, result)
                if result.problem is not None:
                    self._leave_out(k, result.problem)
                    continue
                self._add(k, result)
        self._leave_out_outliers()
        self._log_accepted()
        needed = fewest_usable(self.state.options, self.stage, len(self.clients))
        self.record.is_whole = len(self.accepted) >= needed
        if self.record.is_whole:
            self._commit(aggregate_uploads(self.state, self.stage, self.number, self.updates.uploads))
        return self.record

    def train_client(self, k: int, position: int) -> ClientResult:
        """Train one client in this process."""
        self.progress.training(self.number, f"client {position}/{len(self.clients)}")
        with self.state.options.profiler.profile("local_training"):
            return self.runner.train(k)

    def _executor(self) -> Executor:
        if self.state.hosts is not None:
            return train_on_hosts
        if self.updates.owners:
            return train_on_processes
        return train_here

    def _needs_buffer(self) -> bool:
        """Whether uploads must be there together; only of the plain mean each can be forgotten when the next comes."""
        state = self.state
        options = state.options
        has_own = any(is_overridden(name, state.module, FederatedModule) for name in ("aggregate", "combine"))
        has_rule = options.aggregator is not None or options.privacy is not None
        is_compared = options.max_weight_ratio is not None or options.max_norm_ratio is not None
        is_used_later = self.follow_up is not None or self.stage.keep_uploads or state.has_custom_download
        return has_own or has_rule or is_compared or is_used_later or bool(state.upload_only)

    def _leave_out(self, k: int, problem: Failure) -> None:
        """Go on without a client; a method's mistake would be every client's, if it is the first that a stage sees."""
        is_first = self.state.stage is not self.stage and not self.accepted
        if problem.is_usage and is_first:
            raise UsageError(problem.reason.partition(": ")[2])
        self.record.failures[k] = problem

    def _add(self, k: int, result: ClientResult) -> None:
        outcome = result.outcome
        assert outcome is not None  # else there is a problem
        if self.updates.owners:
            self.updates.record_remote(k, outcome)
        else:
            self.updates.keep(k, outcome)
        outcome.upload = None  # it is kept, or counted, by now
        outcome.client_state = ClientState()
        self.accepted[k] = (outcome, result.scores)

    def _leave_out_outliers(self) -> None:
        for k, reason in self.updates.outliers().items():
            self.record.failures[k] = Failure(f"unusable state: {reason}")
            self.updates.drop(k)
            del self.accepted[k]

    def _log_accepted(self) -> None:
        model = self.stage.reported_as or "personal"
        for k, (outcome, scores) in self.accepted.items():
            if outcome.skipped:
                warn_of_no_loss(self.stage.module or self.state.module, k, outcome.skipped)
            if outcome.overflowed:
                self.record.overflowed[k] = outcome.overflowed
            for data, values in (("train", outcome.logs), ("own", outcome.validation_logs | scores)):
                for name, value in values.items():
                    self.record.rows.append(Row(self.number, self.stage.name, k, "trained", data, name, value))
            for epoch, data, name, value in outcome.epochs:
                self.record.epochs.append(EpochRow(self.number, self.stage.name, epoch, k, model, data, name, value))

    def _commit(self, aggregate: AggregationResult) -> None:
        """The one place where a round of clients changes the federation."""
        state = self.state
        updates = self.updates
        kept = UploadStore(state.client_states.store)
        if self.follow_up is not None or self.stage.keep_uploads:
            for upload in updates.uploads:
                kept[upload.client] = upload.state
        served = ServerResult(aggregate.state, state.server_training_state, [], {})
        if self.follow_up is not None:
            served = train_server(state, self.number, self.follow_up, aggregate.state, kept, self.progress)
        self.record.rows += [*aggregate.rows, *served.rows]
        self.record.overflowed |= served.overflowed
        if not self.stage.keep_uploads:
            kept.clear()
        hosts = state.hosts
        state.end_client_round(
            served.state,
            served.client_state,
            aggregate.momenta,
            self.record.clients,
            updates,
            uploads=kept,
            elsewhere={} if hosts is None else hosts.commit(self.number, list(self.accepted)),
        )
