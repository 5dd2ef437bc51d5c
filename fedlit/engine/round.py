"""A round: clients train, uploads are validated, aggregated and committed; or the server trains."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol

from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.aggregation import State, Upload, defect, num_bytes
from fedlit.data.client import SERVER, Server
from fedlit.engine.aggregation import combining_by, noised, opaque, server_step, with_rule_errors
from fedlit.engine.client_runner import (
    CONSTANT,
    ONE_WAY,
    ClientResult,
    ClientRunner,
    downloads,
    pack,
    unpack,
    with_own_tensors,
    without_values,
)
from fedlit.engine.client_store import ClientStore, UploadStore, assign_ranks, gather_collected
from fedlit.engine.encoding import Encoded, encoding_of
from fedlit.engine.lightning_hooks import warn_of_no_loss
from fedlit.engine.live_module import check_still_frozen, check_unchanged, restored_requires_grad
from fedlit.engine.local_training import train
from fedlit.engine.logged_values import logging_to_means
from fedlit.engine.metrics import Scores
from fedlit.engine.plan import ClientState, LocalResult, Plan, UsageError
from fedlit.engine.processes import in_order
from fedlit.engine.scheduling import fewest_usable
from fedlit.engine.state import FederationState, RoundResult
from fedlit.engine.uploads import (
    BufferedUploads,
    ShardedUploads,
    StreamedUploads,
    UploadValidator,
    out_of_proportion,
    update_norm,
)
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.progress import Progress
from fedlit.records.round_record import Failure, RoundRecord, failure
from fedlit.records.rows import POOLED, EpochRow, LedgerRow, Row
from fedlit.rng import derive, isolated, preserved

DEV_SAMPLES = 64  # a development run trains on so many


class ServerResult(NamedTuple):
    """What the server holds after it has trained, of its optimiser what is kept, and what it logged.

    `overflowed` is as in `RoundRecord`.
    """

    state: State
    memory: ClientState
    rows: list[Row]
    overflowed: dict[int, int]


def serve(state: FederationState, round: int, plan: Plan, progress: Progress) -> RoundRecord:
    """A round of the server's own: it trains what it holds, with what it has collected.

    Args:
        state: Of the federation.
        round: Its number, from 1.
        plan: How the server trains.
        progress: Shows that it trains.
    """
    if not state.collected:
        raise ValueError(f"Stage {plan.stage.name!r}: no client has uploaded anything for the server to learn from.")
    served = trained_by_server(state, round, plan, state.global_state, gather_collected(state), progress)
    state.end_server_round(served.state, served.memory)
    return RoundRecord(rows=served.rows, overflowed=served.overflowed)


def trained_by_server(
    state: FederationState,
    round: int,
    plan: Plan,
    held: State,
    uploads: Mapping[int, State],
    progress: Progress,
) -> ServerResult:
    """Let the first process train what the server holds and send the result to the others; nothing is committed yet.

    Args:
        state: Of the federation.
        round: Its number, from 1.
        plan: How the server trains.
        held: What it starts from.
        uploads: What clients have uploaded, by client id.
        progress: Shows that it trains.
    """
    name = plan.stage.name

    def work(_: int) -> dict[str, Any]:
        progress.training(round, "server")
        with state.options.profiler.profile("server"):
            with state.attributes.serving():
                done = _trained(state, round, plan, held, uploads)
            return done | {"attributes": state.attributes.changes()}

    [(_, done)] = in_order(state.fabric, [0], work, dict, dict)
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
    state.live.reset_modes()
    state.live.put(held)
    try:
        with preserved(), restored_requires_grad(state.module):
            trained = train(state.fabric, state.module, _server(state, round), plan, state.server_memory, uploads)
    except UsageError:
        raise
    except (RuntimeError, ValueError) as error:
        raise RuntimeError(f"The server could not train in round {round}: {failure(error).reason}") from error
    if trained.skipped:
        warn_of_no_loss(plan.stage.module or state.module, SERVER, trained.skipped)
    live = state.module.state_dict()
    momenta = {} if plan.optimizer_state == "reset" else trained.optimizer_state(state.module, state.server_names)
    after = {name: live[name].clone() for name in state.server_names}
    return {"state": after, "momenta": momenta, "logs": trained.logs, "overflowed": trained.overflowed}


def _server(state: FederationState, round: int) -> Server:
    size = len(state.data.public_pool)
    limit = DEV_SAMPLES if state.options.fast_dev_run else None
    return Server(SERVER, state.data.splits.num_classes, size, size, round, data=state.data, limit=limit)


class Ledger:
    """The ledger of one round.

    Args:
        state: Of the federation before it.
        stage: Of the round.
        number: Of the round.
    """

    def __init__(self, state: FederationState, stage: Stage, number: int) -> None:
        self.state = state
        self.stage = stage
        self.number = number
        self.common = list(downloads(state, stage, None))

    def up(self, k: int, upload: Upload, encoded: Encoded | None) -> Iterator[LedgerRow]:
        """What a client has sent: of what is encoded, that; what goes up only stands apart from the model."""
        names = self.state.upload_only if self.stage.upload == "aggregate" else []
        sent = Encoded([], upload.state) if encoded is None else encoded
        one_way = num_bytes({name: sent.plain[name] for name in names if name in sent.plain})
        both_ways = num_bytes(sent) - one_way
        if both_ways or not one_way:
            yield self._row(k, "up", "model", both_ways)
        if one_way:
            yield self._row(k, "up", ONE_WAY, one_way)

    def down(self, k: int, sent: int | None) -> Iterator[LedgerRow]:
        """What a client was sent; `sent` is how much where clients are not all sent the same."""
        found = self.common if sent is None else downloads(self.state, self.stage, sent)
        for kind, size in found:
            if kind != CONSTANT or k not in self.state.received_constants:
                yield self._row(k, "down", kind, size)

    def _row(self, k: int, direction: str, kind: str, size: int) -> LedgerRow:
        return LedgerRow(self.number, k, direction, kind, size)


class Executor(Protocol):
    """Trains the clients of a round."""

    def train(self) -> Iterator[tuple[int, ClientResult]]:
        """What came of each client, in the order of client ids."""


class SerialExecutor:
    """One client after the other, in this process.

    Args:
        round: Whose clients train.
    """

    def __init__(self, round: "ClientRound") -> None:
        self.round = round

    def train(self) -> Iterator[tuple[int, ClientResult]]:
        profiler = self.round.state.options.profiler
        for position, k in enumerate(self.round.clients, 1):
            self.round.progress.client(self.round.number, position, len(self.round.clients))
            with profiler.profile("local_training"):
                result = self.round.runner.train(k)
            yield k, result


class ProcessExecutor:
    """Clients shared out over the processes of a run. Uploads and states stay on the rank that trained the client.

    Args:
        round: Whose clients train.
    """

    def __init__(self, round: "ClientRound") -> None:
        self.round = round

    def train(self) -> Iterator[tuple[int, ClientResult]]:
        round = self.round
        owners = assign_ranks(round.state, round.clients)
        round.owners = dict(zip(round.clients, owners, strict=True))
        positions = {k: position for position, k in enumerate(round.clients, 1)}
        profiler = round.state.options.profiler

        def work(k: int) -> ClientResult:
            round.progress.client(round.number, positions[k], len(round.clients))
            with profiler.profile("local_training"):
                result = round.runner.train(k)
            return without_values(round.kept_here(k, result))

        yield from in_order(round.state.fabric, round.clients, work, pack, unpack, owners)


class RemoteExecutor:
    """Clients on hosts of their own, whose answers are validated here.

    Args:
        round: Whose clients train.
    """

    def __init__(self, round: "ClientRound") -> None:
        self.round = round

    def train(self) -> Iterator[tuple[int, ClientResult]]:
        round = self.round
        hosts = round.state.hosts
        assert hosts is not None
        for position, (k, result, sent) in enumerate(hosts.train(round), 1):
            round.progress.training(round.number, f"client {position}/{len(round.clients)}")
            yield k, round.runner.validated_again(result, sent)


def executor_of(round: "ClientRound") -> Executor:
    """As the federation runs."""
    if round.state.hosts is not None:
        return RemoteExecutor(round)
    if round.state.fabric.world_size > 1:
        return ProcessExecutor(round)
    return SerialExecutor(round)


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
        self.ledger = Ledger(state, self.stage, number)
        plan_for = plans.__getitem__
        validator = UploadValidator(state, self.stage, number, plan_for)
        encoding = encoding_of(state, self.stage, number)
        state.module.stage = self.stage
        is_scored = score and self.stage.upload == "aggregate"
        self.runner = ClientRunner(state, number, plan_for, validator, encoding, is_scored)
        self.memories = ClientStore(state.memories.store)  # what stays with clients from this round on
        self.collected = UploadStore(state.memories.store)
        self.owners: dict[int, int] = {}  # the rank that trains each client, on several processes
        self.owner_ranks: dict[int, int] = {}  # the ranks that have what stays with clients from now on
        self.norms: dict[int, float] = {}  # of updates, where `trainer.max_norm_ratio` compares them
        self.server_momenta = state.server_momenta
        self.uploads = self._begin_uploads()

    def run(self) -> RoundRecord:
        """Train the clients, aggregate what they upload, commit; a client that fails is left out and named.

        With too few valid updates the state stays as it was.
        """
        check_still_frozen(self.state.module, self.state.constant)
        executor = executor_of(self)
        try:
            with preserved():
                for k, result in executor.train():
                    self._receive(k, result)
            self._reject_outliers()
            self._log_accepted()
            self.record.is_whole = self._is_enough()
            if self.record.is_whole:
                self._commit(self._aggregated())
            else:
                self.memories.clear()
                self.collected.clear()
        finally:
            self.uploads.clear()
        return self.record

    def train_alone(self, k: int) -> ClientResult:
        """Train one client, on its own host."""
        check_still_frozen(self.state.module, self.state.constant)
        with preserved():
            return with_own_tensors(self.runner.train(k))

    def _begin_uploads(self) -> StreamedUploads | BufferedUploads | ShardedUploads:
        """Only the plain mean needs no upload after the next has come."""
        state = self.state
        options = state.options
        buffer = BufferedUploads(state.memories.store)
        if state.fabric.world_size > 1:
            are_alike = self.stage.upload == "aggregate" and not state.has_custom_download
            return ShardedUploads(state.fabric, buffer, state.expected_upload(SERVER) if are_alike else None)
        has_own = any(is_overridden(name, state.module, FederatedModule) for name in ("aggregate", "combine"))
        is_rule = options.aggregator is not None or options.privacy is not None
        is_compared = options.max_weight_ratio is not None or options.max_norm_ratio is not None
        is_kept = self.follow_up is not None or self.stage.keep_uploads or state.has_custom_download
        if has_own or is_rule or is_compared or is_kept or self.stage.upload != "aggregate":
            return buffer
        return StreamedUploads(state.shared)

    def _receive(self, k: int, result: ClientResult) -> None:
        """Record what came of a client's training; keep what is valid until the round is over."""
        self.record.clients.append(k)
        self.record.ledger += self.ledger.down(k, result.sent)
        outcome = result.outcome
        if isinstance(outcome, LocalResult) and outcome.upload is not None:
            self.record.ledger += self.ledger.up(k, outcome.upload, result.encoded)
        problem = outcome if isinstance(outcome, Failure) else result.problem
        if problem is not None:
            self._leave_out(k, problem)
            return
        assert isinstance(outcome, LocalResult)  # else there is a problem
        self._keep(k, outcome, result.norm)
        outcome.upload = None  # it is where it waits by now
        outcome.memory = ClientState()
        self.accepted[k] = (outcome, result.scores)

    def _keep(self, k: int, outcome: LocalResult, norm: float | None) -> None:
        """Keep what a client returns until the round is over; on several processes its own rank has done so."""
        upload = outcome.upload
        if not self.owners:
            self._store(k, outcome)
        elif self.owners[k] != self.state.fabric.global_rank:
            self._note_names(k, outcome)
        if self.owners and self._is_kept(k, outcome.memory):
            self.owner_ranks[k] = self.owners[k]
        if upload is None or self.stage.upload == "collect":
            return
        if self.state.options.max_norm_ratio is not None:
            self.norms[k] = self.norm(upload) if norm is None else norm
        if isinstance(self.uploads, ShardedUploads):
            self.uploads.register(k, upload.weight, self.owners[k])

    def _store(self, k: int, outcome: LocalResult) -> None:
        """On the rank that has the tensors: of what a client uploads, and of what stays with it."""
        if self._is_kept(k, outcome.memory):
            self.memories[k] = outcome.memory
        if outcome.upload is None:
            return
        if self.stage.upload == "collect":
            self.collected[k] = outcome.upload.state
        elif isinstance(self.uploads, ShardedUploads):
            self.uploads.own.add(outcome.upload)
        else:
            self.uploads.add(outcome.upload)

    def _note_names(self, k: int, outcome: LocalResult) -> None:
        """On the other ranks."""
        if self._is_kept(k, outcome.memory):
            self.memories.know({k: tuple(outcome.memory.state)})
        if outcome.upload is not None and self.stage.upload == "collect":
            self.collected.know({k: tuple(outcome.upload.state)})

    def kept_here(self, k: int, result: ClientResult) -> ClientResult:
        """On several processes, keep what a client of this rank returns; the result, with what other ranks need."""
        outcome = result.outcome
        if isinstance(outcome, Failure) or result.problem is not None:
            return result
        self._store(k, outcome)
        if outcome.upload is not None and self.state.options.max_norm_ratio is not None:
            return result._replace(norm=self.norm(outcome.upload))
        return result

    def norm(self, upload: Upload) -> float:
        """How far a client has moved from what the server holds."""
        shared = {name: value for name, value in upload.state.items() if name in self.state.shared}
        return update_norm(shared, self.state.shared_state)

    def _is_kept(self, k: int, memory: ClientState) -> bool:
        """Whether anything stays with a client; one that had something may have given all away."""
        is_something = bool(memory.state or memory.optimizer or memory.residual)
        is_collected = self.stage.upload == "collect" and bool(self.owners)  # its rank is known by what it keeps
        return is_something or is_collected or k in self.state.memories or k in self.state.owner_ranks

    def _leave_out(self, k: int, problem: Failure) -> None:
        """Go on without a client; a method's mistake would be every client's, if it is the first that a stage sees."""
        is_first = self.state.stage is not self.stage and len(self.record.failures) + 1 == len(self.record.clients)
        if problem.is_usage and is_first:
            raise UsageError(problem.reason.partition(": ")[2])
        self.record.failures[k] = problem

    def _reject_outliers(self) -> None:
        """Leave out whose weight or update is out of all proportion to the others'."""
        if self.stage.upload != "aggregate" or isinstance(self.uploads, StreamedUploads):
            return
        options = self.state.options
        heavy = out_of_proportion(self.uploads.weights, options.max_weight_ratio, "max_weight_ratio", "weight")
        far = out_of_proportion(self.norms, options.max_norm_ratio, "max_norm_ratio", "update of norm")
        for k, reason in {**far, **heavy}.items():
            self.record.failures[k] = Failure(f"unusable state: {reason}")
            self.uploads.drop(k)
            self.memories.forget(k)
            self.owner_ranks.pop(k, None)
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

    def _is_enough(self) -> bool:
        """Whether at least `trainer.min_clients` clients returned a valid update."""
        needed = fewest_usable(self.state.options, self.stage, len(self.clients))
        return len(self.clients) - len(self.record.failures) >= needed

    def _aggregated(self) -> State:
        """What the method makes of the uploads; what the server holds if there are none."""
        current = self.state.global_state
        options = self.state.options
        self.state.load_global()  # what `aggregate` may read of the module is the server's
        module = self.state.module
        module.client = self.state.live.client  # and the round
        if self.stage.upload != "aggregate" or (not len(self.uploads) and options.privacy is None):
            return current
        rule = noised(self.state, self.stage, self.number)
        if options.aggregator is not None:
            rule = with_rule_errors(options.aggregator, self.number)
        step = server_step(self.state, self.stage, rule)
        constant = set(self.state.constant)
        copy = {name: tensor.clone() for name, tensor in current.items() if name not in constant}
        seed = derive(options.seed, "aggregate", self.stage.name, self.number)
        with isolated(seed), logging_to_means(module) as logs, combining_by(module, step or rule):
            given = module.aggregate(opaque(self.uploads, options), copy)
        agreed = {**current, **given}
        if step is not None and step.momenta is not None:
            self.server_momenta = {self.stage.name: step.momenta}
        for name, value in logs.result().items():
            self.record.rows.append(Row(self.number, self.stage.name, POOLED, "global", "server", name, value))
        if problem := defect(Upload(-1, agreed), current):
            raise UsageError(f"`aggregate` of {type(module).__name__} gave an impossible state: {problem}.")
        check_unchanged(agreed, self.state.constant_state, "in `aggregate`")
        # What was given may be the live module's tensors, in which the next client trains, or the method's own.
        return {**current, **{name: agreed[name].detach().clone() for name in given if name not in constant}}

    def _commit(self, agreed: State) -> None:
        """The one place where a round of clients changes the federation."""
        state = self.state
        kept = UploadStore(state.memories.store)
        if self.follow_up is not None or self.stage.keep_uploads:
            for upload in self.uploads:
                kept[upload.client] = upload.state
        served = ServerResult(agreed, state.server_memory, [], {})
        if self.follow_up is not None:
            served = trained_by_server(state, self.number, self.follow_up, agreed, kept, self.progress)
            self.record.rows += served.rows
            self.record.overflowed |= served.overflowed
        if not self.stage.keep_uploads:
            kept.clear()
        hosts = state.hosts
        state.end_client_round(
            RoundResult(
                agreed=served.state,
                server_memory=served.memory,
                server_momenta=self.server_momenta,
                clients=self.record.clients,
                memories=self.memories,
                owner_ranks=self.owner_ranks,
                collected=self.collected,
                uploads=kept,
                elsewhere={} if hosts is None else hosts.adopt(self.number, list(self.accepted)),
            )
        )
