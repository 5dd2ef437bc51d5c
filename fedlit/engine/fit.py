"""The rounds of one fit: who trains, what is evaluated, recorded and saved, and when it ends."""

import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from lightning.pytorch.profilers import AdvancedProfiler, PassThroughProfiler, Profiler, SimpleProfiler
from torch import Tensor, nn

from fedlit.aggregation import State
from fedlit.data.client import SERVER
from fedlit.engine.aggregation import Budget, RuleFailed
from fedlit.engine.checkpointing import Saving
from fedlit.engine.evaluation import Scorer
from fedlit.engine.liveness import ProcessLost
from fedlit.engine.metrics import unmeasured
from fedlit.engine.plan import Interrupted, Plan
from fedlit.engine.processes import check_processes, largest
from fedlit.engine.round import ClientRound, ServerResult, serve, trained_by_server
from fedlit.engine.run_setup import ResumePoint, chosen_values, title_of
from fedlit.engine.scheduling import ClientSampler, Schedule, TooFewClients, run_with_retries
from fedlit.engine.server_attributes import UnserializableAttribute
from fedlit.engine.state import FederationState
from fedlit.methods.base import FederatedModule
from fedlit.notices import Notice
from fedlit.records.fit_log import FitLog
from fedlit.records.frames import read_metrics
from fedlit.records.progress import Progress
from fedlit.records.round_record import RoundRecord, failure
from fedlit.records.rows import Row
from fedlit.records.stop_signals import stop_signals
from fedlit.records.unwritable import is_full
from fedlit.rng import isolated

if TYPE_CHECKING:
    from pandas import DataFrame

Method = FederatedModule | Callable[[], FederatedModule]


@dataclass(frozen=True)
class FitResult:
    """The result of a fit.

    Attributes:
        method: That was fitted.
        folder: Of the run; None if it was a development run.
        rows: What was measured in the last round of this fit.
        stopped_by: The signal that ended it early, if one did.
        network: Gives a client's network, or the global one: `Federation.network`.
    """

    method: FederatedModule = field(repr=False)
    folder: Path | None
    rows: list[Row] = field(repr=False)
    stopped_by: int | None
    network: Callable[..., nn.Module] = field(repr=False)

    @cached_property
    def metrics(self) -> "DataFrame":
        """All of metrics.csv, of every round, by `fedlit.read_metrics`; needs the extra `report`."""
        if self.folder is None:
            raise ValueError("A development run leaves no metrics; its last ones are `rows`.")
        return read_metrics(self.folder)

    @property
    def checkpoint(self) -> Path | None:
        """The last one; None without `trainer.enable_checkpointing`."""
        return self._checkpoint("last")

    @property
    def best_checkpoint(self) -> Path | None:
        """The best by `trainer.monitor`, or by the clients' own accuracy; None where there is none."""
        return self._checkpoint("best")

    def _checkpoint(self, which: str) -> Path | None:
        if self.folder is None:
            return None
        path = self.folder / "checkpoints" / f"{which}.ckpt"
        return path if path.is_file() else None


def built(model: Any, seed: int) -> FederatedModule:
    """A method as it is, or built by a function under the seed: its first weights follow from it, too."""
    if isinstance(model, nn.Module) or not callable(model):  # what is no method is refused before the first round
        return model
    with isolated(seed):
        return model()


@dataclass
class StopRequest:
    """Whether a fit was asked to end early, and by which signal, if it was one."""

    asked: bool = False
    signal: int | None = None


PROFILERS: dict[str, type[Profiler]] = {"simple": SimpleProfiler, "advanced": AdvancedProfiler}


def make_profiler(given: Profiler | str | None) -> Profiler:
    """The profiler of a federation; without one, what it does is to pass on."""
    if given is None:
        return PassThroughProfiler()
    if isinstance(given, Profiler):
        return given
    if given not in PROFILERS:
        raise ValueError(
            f"`trainer.profiler` must be {', '.join(PROFILERS)} or a profiler of lightning.pytorch.profilers, got "
            f"{given!r}."
        )
    return PROFILERS[given]()


def report_profile(profiler: Profiler, folder: Path | None) -> None:
    """Print the profile, or write it into the folder of the run."""
    if isinstance(profiler, PassThroughProfiler):
        return
    profiler.setup("fit", log_dir=None if folder is None else str(folder))
    profiler.describe()
    profiler.teardown("fit")


class Fit:
    """One fit, from the round that its state has come to.

    Args:
        state: Of the federation.
        schedule: The programme of its rounds.
        folder: Where the first process records, and all save what stays with clients; None records nothing.
        stop: Checked between rounds and, on one process, between batches.
        call: Calls a hook of every callback, with details.
        resume_point: What it begins from.
    """

    def __init__(
        self,
        state: FederationState,
        schedule: Schedule,
        folder: Path | None,
        stop: StopRequest,
        call: Callable[..., None],
        resume_point: ResumePoint,
    ) -> None:
        self.state = state
        self.schedule = schedule
        self.stop = stop
        self.call = call
        self.options = state.options
        self.sampler = ClientSampler(state)
        self.budget = Budget(schedule, self.options)
        self.waiting_for = "this round"  # printed when a signal stops the run
        self.rows: list[Row] = []  # of the last round
        self.first: tuple[int, float] | None = None  # the first client of this round, and when it started
        self.is_expected = False  # whether it was said how long a round takes
        self.confused: Tensor | None = None  # of the last global model that was evaluated
        shown = self.options.enable_progress_bar and state.fabric.is_global_zero
        self.progress = Progress(len(schedule), state.round, shown, state.measures.first)
        self.saving = Saving(state, schedule, folder, call, resume_point)  # before the records, which go back with it
        options = self.options
        self.log = FitLog(
            folder if state.fabric.is_global_zero else None,
            options.logger,
            state.round,
            self.progress,
            options.report,
            resume_point.checkpoint,
            metric=state.measures.first,
            title=title_of(state),
            saves=options.enable_checkpointing,
        )
        self._begin_log(resume_point)

    def _begin_log(self, resume_point: ResumePoint) -> None:
        state = self.state
        processes = state.fabric.world_size
        rounds = len(self.schedule)
        started = {"round": state.round, "rounds": rounds, "processes": processes, "fast": state.module.fast}
        measures = state.measures.directions
        spent = self.budget.spent(state.round)
        self.log.recorder.event("fit", **started, measures=measures, **spent, **self.saving.run_with["made_with"])
        if spent:
            self.progress.say(f"epsilon is {spent['epsilon']:.4g} after {state.round} rounds")
        for event in resume_point.events():
            self.log.recorder.event(**event, round=state.round)
        scorers = [Scorer(state, stage) for stage in self.schedule.stages]
        if state.data.unseen_clients and not any(scorer.has_complete_global_model for scorer in scorers):
            message = f"`data.unseen_clients`: {type(state.module).__name__} has no global model to evaluate on them"
            warnings.warn(f"{message}; `fedlit adapt` lets them join.", Notice, stacklevel=2)
        if state.round == 0:
            self.log.partition(state.data)
            self._save(improved=False)  # killed in its first round, a run can still be resumed
        if state.round >= len(self.schedule):
            self.progress.say(
                f"All {len(self.schedule)} rounds are done; `trainer.num_rounds` says how many there are."
            )

    def run(self) -> None:
        """All rounds that are left, or until somebody asks to stop; then the live module holds the server's state."""
        self.state.attributes.begin()
        try:
            with self._handling_signals():
                for number in range(self.state.round + 1, len(self.schedule) + 1):
                    if self._is_to_stop():
                        break
                    if self._is_beyond_budget(number):
                        break
                    self._one_round(number)
                else:
                    self._is_to_stop()  # in the last round, one may have been
        except ProcessLost:
            self._save_complete_rounds()
            self.log.abandon()
            raise
        except UnserializableAttribute:  # a checkpoint of this round would lack it
            self.log.abandon()
            raise
        except (TooFewClients, RuleFailed) as error:
            self._give_up(error)
            raise
        except Interrupted:
            pass  # the round that had begun is forgotten; its clients' states were not touched
        except KeyboardInterrupt:  # a second one: whoever sends it will not wait
            self.log.abandon()
            raise
        except BaseException as error:
            self._save_complete_rounds()
            self.log.abandon()
            if isinstance(error, SystemExit):  # of a rule, an `aggregate`, a callback: a client's is caught
                raise RuntimeError(f"Round {self.state.round + 1} was ended by sys.exit({error.code}).") from error
            raise
        self.state.load_global()

    def _is_beyond_budget(self, number: int) -> bool:
        """Whether `trainer.privacy` forbids a round; the run then ends as it would have after its last."""
        refusal = self.budget.refusal(number)
        if refusal is not None:
            self.progress.say(refusal)
            self.log.recorder.event("budget_spent", **self.budget.spent(number - 1), round=number - 1)
        return refusal is not None

    def _save_complete_rounds(self) -> None:
        """Save complete rounds since the last checkpoint before an error is shown, if the records have them."""
        round = self.state.round
        if self.log.noted_round != round or self.saving.round == round:
            return
        if not self.saving.can_be_alone:
            return
        try:
            self._save(improved=False)
            self.progress.say(f"Saved round {round} before the error that follows.")
        except Exception as error:  # what went wrong first is what matters
            if not is_full(error):  # it was that which went wrong first
                self.progress.say(f"Round {round} could not be saved: {type(error).__name__}: {error}")

    def _give_up(self, error: TooFewClients | RuleFailed) -> None:
        """Save complete rounds before a run ends for want of clients, or of a rule that can combine their uploads."""
        details = {"reason": str(error).partition("\n")[0]}
        if isinstance(error, RuleFailed):
            details["details"] = failure(error).details
        self.log.recorder.event("gave_up", round=self.state.round + 1, **details)
        if self.saving.round != self.state.round:
            self._save(improved=False)
        self.log.abandon()

    def close(self) -> None:
        """The last checkpoint, the curves and a table."""
        try:
            self._close()
        except BaseException:
            self.log.abandon()
            raise

    def _close(self) -> None:
        state = self.state
        if self.saving.round != state.round:
            self._save(improved=False)
        self._note_confusion()
        scores = state.scores
        chosen = chosen_values(state)
        self.log.close(state.round, chosen, scores.last, scores.best, scores.rated, self.stop.signal)
        monitor = self.options.monitor
        if monitor and scores.last and monitor not in scores.best:
            self.progress.say(f"`trainer.monitor` {monitor} was never measured, so there is no best.ckpt.")
        if state.fabric.is_global_zero:
            report_profile(self.options.profiler, self.log.folder)

    def _one_round(self, number: int) -> None:
        start = perf_counter()
        stage = self.schedule.stage(number)
        is_last = self.schedule.is_last(number)
        is_evaluated = is_last or number % self.options.eval_every_n_rounds == 0
        record = self._trained(number, is_evaluated)
        try:
            rows = [*record.rows, *self.budget.rows(number), *(self._evaluated(number, record) if is_evaluated else ())]
        except BaseException:
            self._count_unevaluated(number, record, perf_counter() - start)
            raise
        self.rows = rows
        improved = self.state.count_round(number, stage, rows)
        with self.options.profiler.profile("record"):
            self.log.round(number, stage.name, record, rows, perf_counter() - start)
        for client, model, data, metric in unmeasured(rows, self.state.measures.metrics):
            where = {"client": client, "model": model, "data": data, "metric": metric}
            self.log.recorder.event("metric_left_out", round=number, **where)
        self.log.partition_picture(self.state.data)  # training comes first
        if is_last:
            self._note_confusion()  # a run that is resumed in a later stage has forgotten it
        self.call("on_round_end", number, rows)  # before the checkpoint, which remembers what callbacks know
        if self.options.callbacks:
            self.state.attributes.note()
        if is_last or improved or number % self.options.save_every_n_rounds == 0:
            self._save(improved)

    def _count_unevaluated(self, number: int, record: RoundRecord, seconds: float) -> None:
        """A round that is trained is complete, though its evaluation failed: it can be saved and resumed."""
        stage = self.schedule.stage(number)
        self.state.count_round(number, stage, record.rows)
        self.log.round(number, stage.name, record, record.rows, seconds)
        self.log.recorder.event("not_evaluated", round=number)

    def _trained(self, number: int, score: bool) -> RoundRecord:
        """Train the clients of a round, or the server, by the stage that it belongs to."""
        stage = self.schedule.stage(number)
        should_stop = self._should_stop_training()
        plan_for = partial(self.schedule.plan, number, should_stop, before_step=self.progress.step)
        follow_up = self.schedule.follow_up(number, should_stop, self.progress.step)
        is_noised = self.options.privacy is not None and stage.upload == "aggregate"

        def train(clients: list[int]) -> RoundRecord:
            self.call("on_round_start", number, clients)
            self.first = None
            report = partial(self._report, clients)
            if stage.side == "server":
                return serve(self.state, number, plan_for(SERVER), report)
            if not clients and not is_noised:
                return RoundRecord()
            follow = None if follow_up is None else partial(self._follow, number, follow_up)
            return ClientRound(self.state, number, clients, plan_for, score, report, follow).run()

        return run_with_retries(self.sampler, stage, number, train, self.log.repeated)

    def _follow(self, number: int, plan: Plan, agreed: State, uploads: Mapping[int, State]) -> ServerResult:
        """Let the server train at the end of a round of clients."""
        return trained_by_server(self.state, number, plan, agreed, uploads, partial(self._report, []))

    def _report(self, clients: list[int], position: int, num_clients: int) -> None:
        """A client, or the server, is about to train."""
        whose = f"client {clients[position - 1]}'s" if clients else "the server's"
        self.waiting_for = f"{whose} batch"
        self.progress.training(self.state.round + 1, f"client {position}/{num_clients}" if clients else "server")
        if clients and not self.is_expected and self.progress.enabled and self.state.hosts is None:
            self._expect(clients, clients[position - 1])

    def _expect(self, clients: list[int], client: int) -> None:
        """After the first client of a fit, print how long a round will take if time grows with samples."""
        if self.first is None:
            self.first = (client, perf_counter())
            return
        self.is_expected = True
        first, start = self.first
        number = self.state.round + 1
        train = self.state.data.at_round(number).train
        share = len(train[first]) / sum(len(train[k]) for k in clients)
        seconds = (perf_counter() - start) / share / self.state.fabric.world_size
        stage = self.schedule.stage(number)
        rounds = sum(self.schedule.stage(later) is stage for later in range(number, len(self.schedule) + 1))
        self.progress.expect(seconds, rounds, f"from client {first}; {self.state.fabric.device.type}")

    def _evaluated(self, number: int, record: RoundRecord) -> list[Row]:
        self.waiting_for = f"the evaluation of round {number}"
        scorer = Scorer(self.state, self.schedule.stage(number))
        with self.options.profiler.profile("evaluate"):
            rows = scorer.evaluate(number)
        if scorer.confused is not None:
            self.confused = scorer.confused
        record.failures = {**scorer.failures, **record.failures}
        return rows

    def _note_confusion(self) -> None:
        if self.confused is not None:
            self.log.confusion(self.confused)

    def _is_to_stop(self) -> bool:
        """Whether any process was asked to; then all end for the same reason."""
        asked, signal = largest(self.state.fabric, int(self.stop.asked), self.stop.signal or 0)
        if asked:  # else one of us may be asked by now, which all shall hear next time
            self.stop.asked = True
            self.stop.signal = signal or None
        return bool(asked)

    def _handling_signals(self) -> AbstractContextManager[None]:
        """Signals end a run in good order; where clients have hosts, at once: it may wait for a host forever."""
        if self.state.hosts is not None:
            return nullcontext()
        return stop_signals(self._stop_by_signal)

    def _stop_by_signal(self, number: int) -> None:
        """Print at once what the run is waiting for."""
        self.stop.asked = True
        self.stop.signal = number
        what = self.waiting_for if self.state.fabric.world_size == 1 else f"round {self.state.round + 1}"
        self.progress.say(f"stopping after {what}; again to end now")

    def _should_stop_training(self) -> Callable[[], bool]:
        """Several processes agree to stop between rounds; a single one may stop in the middle of local training."""
        if self.state.fabric.world_size > 1:
            return _never
        return lambda: self.stop.signal is not None

    def _save(self, improved: bool) -> None:
        with self.options.profiler.profile("save"):
            self.saving.save(self.log, improved)


def _never() -> bool:
    """Local training is not stopped, but ended if another process is lost: its round cannot be completed."""
    check_processes()
    return False
