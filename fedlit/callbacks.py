"""Callbacks of a federation: Lightning's hooks around a command, and hooks at the start and end of a round.

A federation calls `setup` and `teardown` (the stage is the command: fit, validate, test, predict or adapt) and
`on_exception`; in a fit `on_fit_start`, `on_train_start`, `on_train_end` and `on_fit_end`; with its checkpoints
`state_dict`, `load_state_dict`, `on_save_checkpoint` and `on_load_checkpoint`. A callback that overrides any other hook
is refused.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic
from typing import TYPE_CHECKING, Any, Protocol

from lightning.pytorch import Callback
from lightning.pytorch.callbacks import Timer

from fedlit.bounds import check_count, check_number
from fedlit.methods.base import FederatedModule
from fedlit.records.plain_values import is_plain
from fedlit.records.rows import Row, summary

if TYPE_CHECKING:
    from fedlit.federation import Federation

CALLED = {
    "on_fit_start",
    "on_train_start",
    "on_train_end",
    "on_fit_end",
    "on_exception",
    "on_save_checkpoint",
    "on_load_checkpoint",
}
SAVED = "`trainer.save_every_n_rounds` and `trainer.monitor` say what is saved"
TIMED = "the seconds of every round stand in events.jsonl"
AVERAGED = "the server averages, in the method's `aggregate`"
STATES = "callbacks"  # where a checkpoint holds them
INSTEAD = {  # of Lightning's own callbacks that a federation cannot give what they need
    "ModelCheckpoint": SAVED,
    "OnExceptionCheckpoint": "checkpoints/last.ckpt is of the last round that was saved; " + SAVED,
    "EarlyStopping": "fedlit.callbacks.Patience or StopAt ends a fit, `Stage(early_stopping=...)` local training",
    "LearningRateMonitor": "`trainer.lr_schedule` sets the rate of a round; a method may log what it likes",
    "ProgressBar": "`trainer.enable_progress_bar` shows rounds",
    "Timer": f"`trainer.max_time` ends a fit after a round; {TIMED}",
    "DeviceStatsMonitor": TIMED,
    "ThroughputMonitor": TIMED,
    "BatchSizeFinder": "set `data.batch_size`",
    "LearningRateFinder": "set `model.optimizer.lr`",
    "GradientAccumulationScheduler": "set `data.batch_size`",
    "StochasticWeightAveraging": AVERAGED,
    "WeightAveraging": AVERAGED,
    "BaseFinetuning": "the method's `parameters_of` says what a client trains",
    "ModelPruning": "prune in the method's `on_client_end` or `aggregate`",
    "SpikeDetection": "look at the loss in the method's `training_step`; a client that raises is left out of the round",
    "BasePredictionWriter": "`fedlit predict` writes predictions_*.csv",
}


class FederationCallback(Callback):
    """A callback with hooks at the start and end of a round."""

    def on_round_start(self, federation: "Federation", module: FederatedModule, round: int, clients: list[int]) -> None:
        """Called when the clients of the round are sampled."""

    def on_round_end(self, federation: "Federation", module: FederatedModule, round: int, rows: list[Row]) -> None:
        """Called when the round is aggregated, evaluated and recorded; `federation.should_stop = True` ends the fit."""


class StopAt(FederationCallback):
    """End the fit, in whatever stage, when the mean of a metric reaches a value.

    Args:
        value: The value to reach from below, or from above for a loss.
        metric: Such as `acc/personal_on_own`; by default the first metric of the task, `global_on_pooled`.
    """

    def __init__(self, value: float, metric: str | None = None) -> None:
        self.value = check_number("value", value)
        self.metric = metric

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, trainer.state.scores.last)  # a run that goes on may have been there before

    def on_round_end(self, federation: "Federation", module: FederatedModule, round: int, rows: list[Row]) -> None:
        self._look(federation, summary(rows))

    def _look(self, federation: "Federation", last: Mapping[str, Mapping[str, float]]) -> None:
        scores = federation.state.scores
        metric = self.metric or f"{federation.state.measures.first}/global_on_pooled"
        if metric not in last:
            return
        mean = last[metric]["mean"]
        if mean >= self.value if scores.rises(metric) else mean <= self.value:
            federation.should_stop = True


class Patience(FederationCallback):
    """End the fit, in whatever stage, when the mean of a metric has not improved for some rounds.

    A loss improves when it falls; each metric of `trainer.metrics` knows its own direction.

    Args:
        rounds: Rounds without improvement, counted from the best.
        metric: Such as `loss/global_on_own` or `acc/personal_on_own`.
    """

    def __init__(self, rounds: int = 10, metric: str = "acc/global_on_own") -> None:
        self.rounds = check_count("rounds", rounds)
        self.metric = metric

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._look(trainer, trainer.state.round)  # a run that goes on may have been there before

    def on_round_end(self, federation: "Federation", module: FederatedModule, round: int, rows: list[Row]) -> None:
        self._look(federation, round)

    def _look(self, federation: "Federation", round: int) -> None:
        best = federation.state.scores.best.get(self.metric)
        if best is not None and round - best["round"] >= self.rounds:
            federation.should_stop = True


class Trial(Protocol):
    """What `Pruning` asks of a trial, as `optuna.Trial` has it."""

    def report(self, value: float, step: int) -> None:
        """Note a value of a step."""

    def should_prune(self) -> bool:
        """Whether the trial is to end, as others do better."""


class Pruning(FederationCallback):
    """Report a metric to a trial after every round, and end the fit as soon as the trial is to be pruned.

    Args:
        trial: Of a search for options, such as `optuna.Trial`.
        metric: What is reported, as the mean over clients, such as `acc/personal_on_own`.

    Attributes:
        value: What was reported last; None before.
        is_pruned: Whether the trial ended the fit.
    """

    def __init__(self, trial: Trial, metric: str = "acc/global_on_own") -> None:
        self.trial = trial
        self.metric = metric
        self.value: float | None = None
        self.is_pruned = False

    def on_round_end(self, federation: "Federation", module: FederatedModule, round: int, rows: list[Row]) -> None:
        measured = summary(rows)
        if self.metric not in measured:  # of this stage, or in this round
            return
        self.value = measured[self.metric]["mean"]
        self.trial.report(self.value, round)
        if self.trial.should_prune():
            self.is_pruned = True
            federation.should_stop = True


class MaxTime(FederationCallback):
    """End the fit after the round in which the time is over; made by `trainer.max_time`.

    Args:
        seconds: Seconds of training, including those before the run was resumed.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._before = 0.0
        self._start: float | None = None

    @property
    def elapsed(self) -> float:
        return self._before + (0.0 if self._start is None else monotonic() - self._start)

    def state_dict(self) -> dict[str, float]:
        return {"elapsed": self.elapsed}

    def load_state_dict(self, state_dict: dict[str, float]) -> None:
        self._before = state_dict["elapsed"]

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        self._start = monotonic()
        self._look(trainer)

    def on_round_end(self, federation: "Federation", module: FederatedModule, round: int, rows: list[Row]) -> None:
        self._look(federation)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        self._before, self._start = self.elapsed, None

    def _look(self, federation: "Federation") -> None:
        if self.elapsed >= self.seconds:
            federation.should_stop = True


def time_limit(max_time: str | timedelta | Mapping[str, int] | None) -> list[Callback]:
    """The callback that ends a fit after `trainer.max_time`, if there is a limit.

    Example:
        >>> [callback.seconds for callback in time_limit("00:01:30:00")]
        [5400.0]
    """
    if max_time is None:
        return []
    try:
        seconds = Timer(duration=max_time).time_remaining()  # type: ignore[arg-type]  # any mapping will do
    except Exception as error:
        raise ValueError(
            '`trainer.max_time` must be "DD:HH:MM:SS" (or days, hours, minutes and seconds by name), such as '
            f'"00:12:00:00", in quotes, got {max_time!r}.'
        ) from error
    if not seconds or seconds < 0:
        raise ValueError(f"`trainer.max_time` must be more than no time at all, got {max_time}.")
    return [MaxTime(seconds)]


def as_callbacks(given: list[Callback] | Callback | None) -> list[Callback]:
    """A list of callbacks; one whose hooks are never called is refused, rather than silently doing nothing."""
    if given is None:
        return []
    callbacks = list(given) if isinstance(given, list | tuple) else [given]
    for callback in callbacks:
        _check_kind(callback)
        _check_class(callback)
        _check_hooks(callback)
    return callbacks


def _check_kind(callback: object) -> None:
    """Refuse what is not an instance of this Lightning's Callback."""
    if isinstance(callback, Callback):
        return
    if isinstance(callback, type):
        name = callback.__name__
        raise ValueError(f"`trainer.callbacks`: {name} is a class; give a callback, such as {name}().")
    kind = type(callback)
    if any(base.__module__.partition(".")[0] == "pytorch_lightning" for base in kind.__mro__):
        raise ValueError(
            f"`trainer.callbacks`: {kind.__name__} is of the package pytorch_lightning, and fedlit runs on lightning; "
            "import from lightning.pytorch."
        )
    raise ValueError(f"`trainer.callbacks` must be callbacks of lightning.pytorch or fedlit, got a {kind.__name__}.")


def _check_class(callback: Callback) -> None:
    for kind in type(callback).__mro__:
        if kind.__module__.startswith("lightning.") and kind.__name__ in INSTEAD:
            name = type(callback).__name__
            raise ValueError(
                f"`trainer.callbacks`: {name} needs the Trainer's own loops; instead, {INSTEAD[kind.__name__]}."
            )


def _check_hooks(callback: Callback) -> None:
    for hook in vars(Callback):
        if hook.startswith("on_") and hook not in CALLED and _is_overridden(hook, callback):
            name = type(callback).__name__
            raise ValueError(
                f"`trainer.callbacks`: {name} waits for `{hook}`, which a federation never calls; "
                "fedlit.callbacks.FederationCallback has hooks of rounds, and a method those of local training."
            )


def _is_overridden(hook: str, callback: Callback) -> bool:
    """In a class, or in the instance, as a LambdaCallback does with whatever can be called."""
    return getattr(getattr(callback, hook), "__func__", None) is not getattr(Callback, hook)


@contextmanager
def command_hooks(command: str, call: Callable[..., None]) -> Iterator[None]:
    """Call `setup` before a command, `teardown` after it, `on_exception` if it fails; `call` calls a hook of each."""
    try:
        call("setup", command)
        yield
    except BaseException as error:
        call("on_exception", error)
        raise
    call("teardown", command)


def add_states(content: dict[str, Any], callbacks: Iterable[Callback]) -> None:
    """Add the states of callbacks to the content of a checkpoint, if there are any."""
    states = {callback.state_key: callback.state_dict() for callback in callbacks}
    states = {key: state for key, state in states.items() if state}
    for key, state in states.items():
        if not is_plain(state):  # it would be saved, but never be read again
            raise ValueError(
                f"`trainer.callbacks`: the `state_dict` of {key} may hold tensors, numbers, strings and "
                f"containers of them, got {state}."
            )
    if states:
        content[STATES] = states


def load_states(content: Mapping[str, Any], callbacks: Iterable[Callback]) -> None:
    """Restore the states of callbacks that the checkpoint has."""
    states = content.get(STATES, {})
    for callback in callbacks:
        if callback.state_key in states:
            callback.load_state_dict(states[callback.state_key])
