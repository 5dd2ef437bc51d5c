"""The rounds of one fit: who trains, what is evaluated, recorded and saved, and when it ends."""

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from time import perf_counter

from torch import Tensor

from fedlit.data.client import SERVER
from fedlit.engine import liveness
from fedlit.engine.aggregation import RuleFailed
from fedlit.engine.checkpointing import Saving
from fedlit.engine.evaluation import Scorer
from fedlit.engine.metrics import unmeasured
from fedlit.engine.plan import Interrupted
from fedlit.engine.processes import all_reduce_max
from fedlit.engine.round import ClientRound, serve
from fedlit.engine.run_setup import ResumePoint, title_of
from fedlit.engine.scheduling import Schedule, TooFewClients, check_retry, select_clients
from fedlit.engine.server_attributes import UnserializableAttribute
from fedlit.engine.state import FederationState
from fedlit.methods.stage import Stage
from fedlit.notices import Notice
from fedlit.privacy import Accountant
from fedlit.records.choices import chosen_values
from fedlit.records.files import is_full
from fedlit.records.fit_log import FitLog
from fedlit.records.progress import Progress
from fedlit.records.round_record import Failure, RoundRecord, failure
from fedlit.records.rows import POOLED, LedgerRow, Row
from fedlit.records.stop_signals import stop_signals


@dataclass
class StopRequest:
    """Whether a fit was asked to end early, and by which signal, if it was one."""

    asked: bool = False
    signal: int | None = None


class Fit:
    """One fit, from the round that its state has come to.

    The first process records in `folder`, all save there what stays with clients; None records nothing. `call` calls a
    hook of every callback, with details.
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
        self.options = options = state.options
        self.accountant = None if options.privacy is None else Accountant(options.privacy, options.fraction_fit)
        self.rows: list[Row] = []  # of the last round
        self.confusion_matrix: Tensor | None = None  # of the last global model that was evaluated
        metric = state.measures.first
        is_shown = options.enable_progress_bar and state.fabric.is_global_zero
        self.progress = Progress(len(schedule), state.round, is_shown, metric)
        self.plan_callbacks = {"should_stop": self._should_stop, "before_step": self._before_step}  # of each plan
        self.saving = Saving(state, schedule, folder, call, resume_point)  # before the records, which go back with it
        self.log = FitLog(
            folder if state.fabric.is_global_zero else None,
            state.data,
            options.logger,
            state.round,
            self.progress,
            options.report,
            metric=metric,
            title=title_of(state),
            saves=options.enable_checkpointing,
        )
        self._log_start(resume_point)

    def _log_start(self, resume_point: ResumePoint) -> None:
        state = self.state
        rounds = len(self.schedule)
        spent = self._privacy_spent(state.round)
        self.log.options(chosen_values(state.options, state.data, state.module))
        self.log.event(
            "fit",
            round=state.round,
            rounds=rounds,
            processes=state.fabric.world_size,
            fast=state.module.fast,
            measures=state.measures.directions,
            **spent,
            **self.saving.run_with["made_with"],
        )
        if spent:
            self.progress.say(f"epsilon is {spent['epsilon']:.4g} after {state.round} rounds")
        if resume_point.fallback is not None:
            origin = str(resume_point.checkpoint)
            self.log.event("fell_back", on=origin, reason=resume_point.fallback, round=state.round)
        for change in resume_point.changes:
            self.log.event("changed", **change._asdict(), round=state.round)
        scorers = [Scorer(state, stage) for stage in self.schedule.stages]
        if state.data.unseen_clients and not any(scorer.has_complete_global_model for scorer in scorers):
            message = f"`data.unseen_clients`: {type(state.module).__name__} has no global model to evaluate on them"
            warnings.warn(f"{message}; `fedlit adapt` lets them join.", Notice, stacklevel=2)
        if state.round == 0:
            self.saving.save()  # killed in its first round, a run can still be resumed
        if state.round >= rounds:
            self.progress.say(f"All {rounds} rounds are done; `trainer.num_rounds` says how many there are.")

    def run(self) -> None:
        """All rounds that are left, or until somebody asks to stop; then the live module holds the server's state."""
        self.state.attributes.set_baseline()
        # Where clients have hosts, a signal ends the run at once: it may wait for a host forever.
        handling_signals = stop_signals(self._stop_by_signal) if self.state.hosts is None else nullcontext()
        try:
            with handling_signals:
                while self._has_next_round():
                    self._run_round(self.state.round + 1)
        except BaseException as error:
            if type(error) is not Interrupted:  # else the round is forgotten; its clients' states were not touched
                self._save_complete_rounds(error)
                if isinstance(error, SystemExit):  # of an `aggregate` or a callback: a client's is caught
                    raise RuntimeError(f"Round {self.state.round + 1} was ended by sys.exit({error.code}).") from error
                raise
        self.state.load_global()

    def _run_round(self, number: int) -> None:
        """Train and aggregate, evaluate, log, save."""
        start = perf_counter()
        stage = self.schedule.stage(number)
        is_last = self.schedule.is_last(number)
        is_evaluated = is_last or number % self.options.eval_every_n_rounds == 0
        record = self._train(number, stage, is_evaluated)
        spent = self._privacy_spent(number).items()
        rows = record.rows + [Row(number, stage.name, POOLED, "global", "server", *entry) for entry in spent]
        try:
            if is_evaluated:
                rows += self._evaluate(number, stage, record)
        finally:  # a round that is trained is complete, though its evaluation failed: it can be saved and resumed
            improved = self.state.count_round(number, stage, rows)
            self.rows = rows
            with self.options.profiler.profile("record"):
                self.log.round(number, stage.name, record, rows, perf_counter() - start)
            for missing in unmeasured(rows, self.state.measures.metrics):
                where = dict(zip(("client", "model", "data", "metric"), missing, strict=True))
                self.log.event("metric_left_out", round=number, **where)
        if is_last:
            self.log.confusion(self.confusion_matrix)  # a run that is resumed in a later stage has forgotten it
        self.call("on_round_end", number, rows)  # before the checkpoint, which remembers what callbacks know
        if self.options.callbacks:
            self.state.attributes.note()
        if is_last or improved or number % self.options.save_every_n_rounds == 0:
            self.saving.save(improved)

    def _train(self, number: int, stage: Stage, score: bool) -> RoundRecord:
        """Train the clients of a round, with others if too few returned a valid update; or train the server."""
        if stage.side == "server":
            self.call("on_round_start", number, [])
            return serve(self.state, number, self.schedule.plan(number, SERVER, **self.plan_callbacks), self.progress)
        failed: dict[int, Failure] = {}
        ledger: list[LedgerRow] = []
        follow_up = self.schedule.follow_up(number, **self.plan_callbacks)
        for attempt in count(1):
            clients = select_clients(self.state, stage, number, attempt, failed)
            self.call("on_round_start", number, clients)
            if not clients and (self.options.privacy is None or stage.upload != "aggregate"):  # else there is noise
                return RoundRecord()
            plans = self.schedule.plans(number, clients, **self.plan_callbacks)
            record = ClientRound(self.state, number, stage, plans, score, self.progress, follow_up).run()
            record.attempt = attempt
            record.ledger = [*ledger, *record.ledger]  # what failed attempts sent counts, too
            if record.is_whole:
                break
            self.log.repeated(number, record)
            failed |= record.failures
            ledger = record.ledger
            check_retry(self.state, stage, number, record, failed)
        return record

    def _should_stop(self) -> bool:
        """Whether local training ends at once. Several processes agree to stop between rounds."""
        if self.state.fabric.world_size == 1:
            return self.stop.signal is not None
        if alive := liveness.current():
            alive.check()  # if another process is lost, the round cannot be completed
        return False

    def _before_step(self, done: int, total: int) -> None:
        if self._should_stop():
            raise Interrupted
        self.progress.step(done, total)

    def _evaluate(self, number: int, stage: Stage, record: RoundRecord) -> list[Row]:
        scorer = Scorer(self.state, stage)
        with self.options.profiler.profile("evaluate"):
            rows = scorer.evaluate(number)
        if scorer.confusion_matrix is not None:
            self.confusion_matrix = scorer.confusion_matrix
        record.failures = {**scorer.failures, **record.failures}
        return rows

    def _save_complete_rounds(self, error: BaseException) -> None:
        """Save complete rounds since the last checkpoint before an error is shown, if the records have them."""
        round = self.state.round
        is_everywhere = isinstance(error, TooFewClients | RuleFailed)  # on every process: all can save
        if is_everywhere:
            details = {"details": failure(error).details} if isinstance(error, RuleFailed) else {}
            self.log.event("gave_up", round=round + 1, reason=str(error).partition("\n")[0], **details)
        is_new = self.log.noted_round == round != self.saving.round
        # Where no rank owns what others lack, one that is alone can save.
        can_save = is_everywhere or (self.options.enable_checkpointing and not self.state.owner_ranks)
        if not is_new or not can_save or isinstance(error, UnserializableAttribute):  # which the checkpoint would lack
            return
        try:
            self.saving.save()
            self.progress.say(f"Saved round {round} before the error that follows.")
        except Exception as problem:  # what went wrong first is what matters
            if not is_full(problem):  # it was that which went wrong first
                self.progress.say(f"Round {round} could not be saved: {type(problem).__name__}: {problem}")

    def close(self) -> None:
        """The last checkpoint, the curves and a table."""
        state = self.state
        if self.saving.round != state.round:
            self.saving.save()
        self.log.confusion(self.confusion_matrix)
        scores = state.scores
        self.log.close(state.round, scores.last, scores.best, scores.best_with_direction, self.stop.signal)
        monitor = self.options.monitor
        if monitor and scores.last and monitor not in scores.best:
            self.progress.say(f"`trainer.monitor` {monitor} was never measured, so there is no best.ckpt.")
        if state.fabric.is_global_zero:  # print the profile, or write it into the folder of the run
            self.options.profiler.setup("fit", log_dir=None if self.log.folder is None else str(self.log.folder))
            self.options.profiler.describe()

    def _has_next_round(self) -> bool:
        """Whether there is another round, none of all processes was asked to stop, and its privacy is paid for."""
        asked, signal = all_reduce_max(self.state.fabric, int(self.stop.asked), self.stop.signal or 0)
        if asked:  # else one of us may be asked by now, which all shall hear next time
            self.stop.asked = True
            self.stop.signal = signal or None
        number = self.state.round + 1
        if asked or number > len(self.schedule):
            return False
        if self.accountant is None or self.accountant.allows(self.schedule.num_averaging(number)):
            return True
        before, after = (self._privacy_spent(n)["epsilon"] for n in (number - 1, number))
        self.progress.say(
            f"round {number} would come to epsilon {after:.4g}, beyond `trainer.privacy.target_epsilon` "
            f"of {self.accountant.privacy.target_epsilon}: the run ends after round {number - 1}, at {before:.4g}."
        )
        self.log.event("budget_spent", epsilon=before, round=number - 1)
        return False

    def _privacy_spent(self, number: int) -> dict[str, float]:
        """Epsilon after so many rounds, under `trainer.privacy`."""
        if self.accountant is None:
            return {}
        return {"epsilon": self.accountant.epsilon(self.schedule.num_averaging(number))}

    def _stop_by_signal(self, number: int) -> None:
        """Print at once what the run is waiting for."""
        self.stop.asked = True
        self.stop.signal = number
        is_alone = self.state.fabric.world_size == 1
        what = "this batch or evaluation" if is_alone else f"round {self.state.round + 1}"
        self.progress.say(f"stopping after {what}; again to end now")
