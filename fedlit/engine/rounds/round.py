"""What a round of clients does: visit them, check and record what they bring, agree on a new state."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from fedlit.aggregation import Spread, State, Upload, defect
from fedlit.data.client import SERVER
from fedlit.engine.cluster.processes import in_order
from fedlit.engine.evaluations.trained_copy import scores_of_copy
from fedlit.engine.module.freezing import check_still_frozen, check_unchanged
from fedlit.engine.module.log_sinks import noted
from fedlit.engine.plan import Memory, Outcome, Plan
from fedlit.engine.rounds.agreement import combining_by, sealed, watched_over
from fedlit.engine.rounds.custody import Custody
from fedlit.engine.rounds.encoding import encoding_of
from fedlit.engine.rounds.held import out_of_proportion
from fedlit.engine.rounds.ledger import Ledger
from fedlit.engine.rounds.private_rounds import noised
from fedlit.engine.rounds.server import Served
from fedlit.engine.rounds.server_step import server_step
from fedlit.engine.rounds.soundness import Soundness, hint
from fedlit.engine.rounds.spread import Uploads, begun, exhaust
from fedlit.engine.rounds.visited import Visited, pack, received, unpack
from fedlit.engine.rounds.visiting import Visits
from fedlit.engine.scoring.tally import Scores
from fedlit.engine.states.client_store import States
from fedlit.engine.states.collected import Collected
from fedlit.engine.states.homes import share_out
from fedlit.engine.states.sending import Sent
from fedlit.engine.states.state import Brought, FederationState
from fedlit.engine.turns.sampling import fewest_usable
from fedlit.engine.usage import UsageError
from fedlit.engine.visits.step_contract import warn_of_no_loss
from fedlit.records.round_record import Failure, RoundRecord
from fedlit.records.rows import POOLED, EpochRow, Row
from fedlit.rng import derive, isolated

Follow = Callable[[State, Mapping[int, State]], Served]


class ClientRound:
    """One round of clients.

    Args:
        state: Of the federation; nothing of it changes before the end of the round.
        number: Of the round, from 1.
        clients: In the order of their ids; under `trainer.privacy` there may be none.
        plan_for: How a client trains; all belong to one stage.
        score: Evaluate every client's copy right after its training.
        tell: Called with position and number of clients before each visit.
        follow: What the server does with what was agreed on and with the uploads, before the round is over.
    """

    def __init__(
        self,
        state: FederationState,
        number: int,
        clients: list[int],
        plan_for: Callable[[int], Plan],
        score: bool,
        tell: Callable[[int, int], None],
        follow: Follow | None = None,
    ) -> None:
        self.state = state
        self.number = number
        self.clients = clients
        self.plan_for = plan_for
        self.stage = plan_for(clients[0] if clients else SERVER).stage
        self.score = score and self.stage.upload == "aggregate"
        self.tell = tell
        self.record = RoundRecord(is_whole=False)
        self.ledger = Ledger(state, self.stage, number)
        self.num_needed = fewest_usable(state.options, self.stage, len(clients))
        self.custody = Custody(state)
        self.collected = Collected(state.memories.store)
        self.server_momenta = state.server_momenta
        self.follow = follow
        self.uploads = States(state.memories.store)  # of those who are aggregated, where somebody asks for them later
        self.soundness = Soundness(state, self.stage, number, plan_for)
        self.encoding = encoding_of(state, self.stage, number)

    def train(self) -> RoundRecord:
        """Visit the clients and let the server agree on a new state; a client that fails is left out and named.

        With too few that are usable the state stays as it was.
        """
        self.state.module.stage = self.stage  # also of evaluations, which come after the visits
        check_still_frozen(self.state.module, self.state.constant)
        try:
            return self._trained()
        finally:
            self.custody.held.clear()

    def _trained(self) -> RoundRecord:
        uploads: Uploads = self._uploads()
        if self.stage.upload == "collect":
            self.custody.collect(uploads, self.collected)
        elif self.state.fabric.world_size > 1:
            are_alike = self.stage.upload == "aggregate" and not self.state.sends_apart
            uploads = self.custody.spread(uploads, are_alike)
        if self.follow is not None or self.stage.keep_uploads:
            uploads = self._held(uploads)
        try:
            agreed = self._aggregated(uploads) if self.stage.upload == "aggregate" else self.state.global_state
        except (ValueError, RuntimeError):  # a rule may not know what to do with so few
            if self._is_enough():
                raise
            return self.record
        if not isinstance(uploads, Spread):
            exhaust(uploads)  # where nothing is aggregated nobody asked for them; a rule may also stop early
        self.record.is_whole = self._is_enough()
        if self.record.is_whole:
            self._end(agreed)
        else:
            self.uploads.clear()
            self.collected.clear()
        return self.record

    def _end(self, agreed: State) -> None:
        served = self._followed(agreed)
        sound = [k for k in self.record.clients if k not in self.record.failures]
        hosts = self.state.hosts
        if not self.stage.keep_uploads:
            self.uploads.clear()
        brought = Brought(
            agreed=served.state,
            server_memory=served.memory,
            server_momenta=self.server_momenta,
            clients=self.record.clients,
            memories=self.custody.memories,
            homes=self.custody.homes,
            collected=self.collected,
            uploads=self.uploads,
            elsewhere={} if hosts is None else hosts.adopt(self.number, sound),
        )
        self.state.end_client_round(brought)

    def _held(self, uploads: Iterable[Upload]) -> Iterator[Upload]:
        for upload in uploads:
            self.uploads[upload.client] = upload.state
            yield upload

    def _followed(self, agreed: State) -> Served:
        """What the server makes of what was agreed on."""
        if self.follow is None:
            return Served(agreed, self.state.server_memory, [], {})
        served = self.follow(agreed, self.uploads)
        self.record.rows += served.rows
        self.record.overflowed |= served.overflowed
        return served

    def _is_enough(self) -> bool:
        """Whether as many clients as `trainer.min_clients` says have brought something usable, or still may."""
        return len(self.clients) - len(self.record.failures) >= self.num_needed

    def _aggregated(self, uploads: Uploads) -> State:
        """What the method makes of the uploads; what the server holds if there are none."""
        current = self.state.global_state
        options = self.state.options
        found = begun(uploads)
        if found is None:
            if options.privacy is None:
                return current
            found = ()
        rule = noised(self.state, self.stage, self.number)
        if options.aggregator is not None:
            rule = watched_over(options.aggregator, self.number)
        step = server_step(self.state, self.stage, rule)
        constant = set(self.state.constant)
        copy = {name: tensor.clone() for name, tensor in current.items() if name not in constant}
        module = self.state.module
        seed = derive(options.seed, "aggregate", self.stage.name, self.number)
        with isolated(seed), noted(module) as logs, combining_by(module, step or rule):
            agreed = {**current, **module.aggregate(sealed(found, options), copy)}
        if step is not None and step.momenta is not None:
            self.server_momenta = {self.stage.name: step.momenta}
        for name, value in logs.result().items():
            self.record.rows.append(Row(self.number, self.stage.name, POOLED, "global", "server", name, value))
        if problem := defect(Upload(-1, agreed), current):
            raise UsageError(f"`aggregate` of {type(module).__name__} gave an impossible state: {problem}.")
        check_unchanged(agreed, self.state.constant_state, "in `aggregate`")
        return agreed

    def _uploads(self) -> Iterator[Upload]:
        """Visit clients in order; record what they bring, keep what stays with them, pass on what is sound."""
        options = self.state.options
        is_compared = options.max_weight_ratio is not None or options.max_norm_ratio is not None
        if is_compared and self.stage.upload == "aggregate":
            yield from self._in_proportion()
        else:
            for k, outcome, scores in self._sound():
                self.custody.keep(k, outcome.memory)
                self._note_values(k, outcome, scores)
                if outcome.upload is not None:
                    yield outcome.upload
        self.state.load_global()  # what `aggregate` may read of the module is the server's, on every process

    def _sound(self) -> Iterator[tuple[int, Outcome, Scores]]:
        """Visit clients in order; record what they bring, pass on what is sound."""
        for k, visited in self._visited():
            self.record.clients.append(k)
            self.record.ledger += self.ledger.down(k, visited.sent)
            outcome = visited.outcome
            if isinstance(outcome, Outcome) and outcome.upload is not None:
                self.record.ledger += self.ledger.up(k, outcome.upload, visited.encoded)
            if visited.norm is not None:
                self.custody.norms[k] = visited.norm
            if isinstance(outcome, Failure):
                self._leave_out(k, outcome)
            elif visited.problem is not None:
                self._leave_out(k, visited.problem)
            else:
                yield k, outcome, visited.scores

    def _visited(self) -> Iterator[tuple[int, Visited]]:
        """What comes of the visits, in order: made here, or by the clients' own hosts and looked at here."""
        hosts = self.state.hosts
        if hosts is not None:
            for k, visited, sent in hosts.visited(self):
                self._tell_of(k)
                yield k, self._looked_at_again(visited, sent)
            return
        owners = share_out(self.state, self.clients)
        self.custody.share(self.clients, owners)
        visit = self._visits()

        def work(k: int) -> Visited:
            self._tell_of(k)
            with self.state.options.profiler.profile("visit"):
                return self.custody.left_here(k, visit(k))

        yield from in_order(self.state.fabric, self.clients, work, pack, unpack, owners)

    def visited(self, k: int) -> Visited:
        """What one client brings, on its own host."""
        check_still_frozen(self.state.module, self.state.constant)
        return self._visits()(k)

    def _visits(self) -> Visits:
        return Visits(self.state, self.number, self.plan_for, self._looked_at, self._received)

    def _tell_of(self, k: int) -> None:
        self.tell(self.clients.index(k) + 1, len(self.clients))

    def _received(self, k: int, sent: Sent | None, packed: dict[str, Any]) -> Visited:
        """What a client's own process brings; it is trusted no more than another host."""
        decode = None if self.encoding is None else self.encoding.decoded
        return self._looked_at_again(received(packed, self.stage, k, decode), sent)

    def _looked_at_again(self, visited: Visited, sent: Sent | None) -> Visited:
        """What another process or host says is valid need not be."""
        if isinstance(visited.outcome, Failure) or visited.problem is not None:
            return visited
        return visited._replace(problem=self.soundness.problem(visited.outcome, sent))

    def _leave_out(self, k: int, found: Failure) -> None:
        """Go on without a client; a method's mistake would be every client's, if it is the first that a stage sees."""
        is_first = self.state.stage is not self.stage and len(self.record.failures) + 1 == len(self.record.clients)
        if found.is_usage and is_first:
            raise UsageError(found.reason.partition(": ")[2])
        self.record.failures[k] = found

    def _in_proportion(self) -> Iterator[Upload]:
        """Hold the uploads until all have come, and pass on those that are not out of all proportion."""
        options = self.state.options
        weights: dict[int, float] = {}
        brought: dict[int, tuple[Outcome, Scores]] = {}
        for k, outcome, scores in self._sound():
            assert outcome.upload is not None  # the stage aggregates
            weights[k] = outcome.upload.weight
            self.custody.hold(outcome.upload)
            self.custody.keep(k, outcome.memory)
            brought[k] = (replace(outcome, upload=None, memory=Memory()), scores)
        heavy = out_of_proportion(weights, options.max_weight_ratio, "max_weight_ratio", "weight")
        far = out_of_proportion(self.custody.norms, options.max_norm_ratio, "max_norm_ratio", "update of norm")
        for k, reason in {**far, **heavy}.items():
            self.custody.drop(k)
            self.record.failures[k] = Failure(f"unusable state: {reason}")
            del brought[k]
        for k, values in brought.items():
            self._note_values(k, *values)
            yield self.custody.handed_over(k, weights[k])

    def _looked_at(self, k: int, outcome: Outcome, sent: Sent | None) -> Visited:
        encoded = None
        problem = None
        scores = scores_of_copy(self.state, self.stage, self.number, k) if self.score else {}
        if self.state.options.upload_encoder is not None:
            outcome.memory.residual = self._residual(k)
        if self.encoding is not None:
            encoded, problem = self.encoding.send(outcome)
            if problem is not None:
                problem.reason += hint(problem.reason)
        return Visited(outcome, scores, problem or self.soundness.problem(outcome, sent), encoded=encoded)

    def _residual(self, k: int) -> State:
        """What the encoder of uploads has lost of a client's so far."""
        memory = self.state.memories.get(k)
        return {} if memory is None else memory.residual

    def _note_values(self, k: int, outcome: Outcome, scores: Scores) -> None:
        if outcome.skipped:
            warn_of_no_loss(self.stage.module or self.state.module, k, outcome.skipped)
        if outcome.overflowed:
            self.record.overflowed[k] = outcome.overflowed
        for data, values in (("train", outcome.logs), ("own", outcome.validation_logs | scores)):
            for name, value in values.items():
                self.record.rows.append(Row(self.number, self.stage.name, k, "trained", data, name, value))
        model = self.stage.reported_as or "personal"
        for epoch, data, name, value in outcome.epochs:
            self.record.epochs.append(EpochRow(self.number, self.stage.name, epoch, k, model, data, name, value))
