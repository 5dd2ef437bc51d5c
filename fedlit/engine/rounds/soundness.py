"""Whether what a client brings can be used: its upload, what it would keep, and what it has logged."""

from collections.abc import Callable

from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.aggregation import Upload, defect
from fedlit.data.client import SERVER
from fedlit.engine.module.isolation import failed
from fedlit.engine.plan import Outcome, Plan
from fedlit.engine.rounds.counters import counters_of, most_batches, overcounted
from fedlit.engine.states.sending import Sent
from fedlit.engine.states.state import FederationState
from fedlit.engine.usage import UsageError
from fedlit.methods.base import FederatedModule
from fedlit.methods.stage import Stage
from fedlit.records.round_record import Failure


class Soundness:
    """The checks of one round.

    Args:
        state: Of the federation before it.
        stage: Of the round.
        number: Of the round.
        plan_for: How a client trains.
    """

    def __init__(self, state: FederationState, stage: Stage, number: int, plan_for: Callable[[int], Plan]) -> None:
        self.state = state
        self.stage = stage
        self.number = number
        self.plan_for = plan_for
        self.counters = counters_of(state.shared_state)
        self.expected = state.expected_upload(SERVER)  # of everybody, unless clients are sent different states

    def problem(self, outcome: Outcome, sent: Sent | None) -> Failure | None:
        """What is wrong with what a client brings."""
        try:
            self._check_names(outcome.validation_logs)
            if problem := self._unusable(outcome, sent):
                return Failure(f"unusable state: {problem}{hint(problem)}")
        except Exception as error:  # tensors of strange kinds can hardly be looked at
            return failed(error)
        return None

    def _unusable(self, outcome: Outcome, sent: Sent | None) -> str | None:
        """Of an upload, or of what a client would keep; what is collected differs in its shapes."""
        upload = outcome.upload
        if upload is not None:
            is_collected = self.stage.upload == "collect"
            expected = self.expected if sent is None else self.state.expected_upload(upload.client, sent)
            if is_collected:
                expected = upload.state
            if problem := defect(upload, expected):
                return problem
            if self.counters and self.stage.upload == "aggregate":
                plan = self.plan_for(upload.client)
                most = most_batches(self.state.data.client(upload.client, self.number), plan)
                if problem := overcounted(upload.state, expected, self.counters, most):
                    return problem
            self._ask_method(upload)
        for kept in (outcome.memory.state, outcome.memory.residual):
            if kept and (problem := defect(Upload(-1, kept), kept)):
                return problem
        return None

    def _ask_method(self, upload: Upload) -> None:
        """What a method knows of its uploads; it raises if one cannot be."""
        module = self.state.module
        if not is_overridden("check_upload", module, FederatedModule):
            return
        client = self.state.data.client(upload.client, self.number)
        available = len(client.train_batches(None, self.stage.samples, self.stage.public))
        module.check_upload(client, upload.state, self.plan_for(upload.client).num_steps(available))

    def _check_names(self, validation_logs: dict[str, float]) -> None:
        """What a method measures on a client's own samples is told apart from what the federation does."""
        for name in set(self.state.measures.names) & validation_logs.keys():
            raise UsageError(
                f"`self.log({name!r}, ...)` in validation: the federation measures {name!r} on the same samples; "
                "log under another name."
            )


def hint(problem: str) -> str:
    """What a person may look at."""
    return " (is the lr too high, or the scale of the inputs?)" if problem.endswith("is not finite") else ""
