"""How the clients of a round train: in this process, or in one of their own."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from fedlit.aggregation import Upload, num_bytes
from fedlit.engine.evaluations.epoch_scores import EpochScores, is_followed
from fedlit.engine.guards.child_process import in_child
from fedlit.engine.module.freezing import check_unchanged, without_frozen
from fedlit.engine.plan import Memory, Outcome, Plan
from fedlit.engine.rounds.downloads import is_sent
from fedlit.engine.rounds.visited import Visited, pack
from fedlit.engine.states.sending import Sent
from fedlit.engine.states.state import FederationState
from fedlit.engine.usage import UsageError
from fedlit.engine.visits.training import Parts
from fedlit.engine.visits.visit import visit
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure


class Visits:
    """The visits of a round, on this process.

    Args:
        state: Of the federation; nothing of it changes.
        number: Of the round.
        plan_for: How a client trains; all belong to one stage.
        look: What to make of an outcome.
        received: Validates what comes from a process of a client's own, and says what came of its training.
    """

    def __init__(
        self,
        state: FederationState,
        number: int,
        plan_for: Callable[[int], Plan],
        look: Callable[[int, Outcome, Sent | None], Visited],
        received: Callable[[int, Sent | None, dict[str, Any]], Visited],
    ) -> None:
        self.state = state
        self.number = number
        self.plan_for = plan_for
        self.look = look
        self.received = received
        self.constant = frozenset(state.constant)
        self.before = state.live.snapshot()
        self.parts: Parts | None = None  # where clients build networks of their own, each has others

    def __call__(self, k: int) -> Visited:
        """What a client brings, or why it brings nothing: whatever it does, the round goes on without it."""
        state = self.state
        memory = state.memories.get(k) or Memory()
        if not state.sends_apart or not is_sent(state, self.plan_for(k).stage):
            return self._guarded(k, memory, None)
        sent = state.sent_to(k, self.number)  # by the server: a mistake there is nobody's own
        self._check_has_something(k, sent)
        visited = self._guarded(k, memory, sent)
        return visited._replace(sent=num_bytes({**sent.state, **sent.received}))

    def _check_has_something(self, k: int, sent: Sent) -> None:
        """Whoever holds nothing of what is shared would upload nothing, round after round, without a word."""
        state = self.state
        held = {*sent.state, *state.personal(k)}
        if state.shared and held.isdisjoint(state.shared):
            raise UsageError(
                f"`download` of {type(state.module).__name__} sends client {k} nothing of what is shared, and it has "
                "uploaded nothing before: return `current`, or what it is to begin with."
            )

    def _guarded(self, k: int, memory: Memory, sent: Sent | None) -> Visited:
        """What a client brings, or why it brings nothing; in a process of its own under `trainer.client_timeout`."""
        state = self.state

        def visited() -> Visited:
            def work() -> Visited:
                return self.look(k, self._visit(k, memory, sent), sent)

            result = state.live.attempt(work, self.before)
            return Visited(result, {}) if isinstance(result, Failure) else result

        timeout = state.options.client_timeout
        if timeout is None:
            return visited()
        result = in_child(visited, timeout, self.plan_for(k).should_stop, pack, partial(self.received, k, sent))
        return Visited(result, {}) if isinstance(result, Failure) else result

    def _visit(self, k: int, memory: Memory, sent: Sent | None) -> Outcome:
        state = self.state
        plan = self.plan_for(k)
        state.enter(k, "server" if plan.stage.upload == "aggregate" else "personal", self.number, sent)
        client = state.data.client(k, self.number)
        every = state.options.eval_every_n_epochs
        followed: EpochScores | None = None
        if every is not None and is_followed(plan.stage):
            followed = EpochScores(state, plan.stage, client, every)
            plan = replace(plan, after_epoch=followed)
        outcome = visit(
            state.fabric, state.module, client, plan, state.shared, memory, self.constant, self._parts(plan.stage)
        )
        if followed is not None:
            outcome.epochs = followed.values
        if sent is not None and outcome.upload is not None:
            outcome.upload = self._held(k, outcome.upload, sent)
        if self.constant or state.frozen:
            self._forget_frozen(outcome)
        return outcome

    def _parts(self, stage: Stage) -> Parts | None:
        if self.state.live.builds_clients:
            return None
        if self.parts is None:
            self.parts = Parts(self.state.module, stage.module or self.state.module)
        return self.parts

    def _forget_frozen(self, outcome: Outcome) -> None:
        """What is the same for all, and was so before, is not kept by every client."""
        state = self.state
        constant = state.constant_state
        if constant:
            check_unchanged(state.live.tensors(), constant, "in a visit")
        own = {name: tensor for name, tensor in outcome.memory.state.items() if name not in constant}
        outcome.memory.state = without_frozen(own, state.frozen, state.initial)

    def _held(self, k: int, upload: Upload, sent: Sent) -> Upload:
        """Of an upload what the client holds: a part of the shared state that it was never sent is not its own."""
        held = self.state.expected_upload(k, sent)
        return replace(upload, state={name: value for name, value in upload.state.items() if name in held})
