"""What local training is asked to do, what comes of it, and the errors that end a run."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from fedlit.aggregation import State, Upload
from fedlit.methods.stage import Stage


class UsageError(ValueError):
    """A method asks for what no local training has: at the first client of a stage, it ends the run."""


class NoSuchAttribute(UsageError, AttributeError):
    """The same for an attribute, so that `hasattr` and a default still work."""


OptimizerState = dict[str, dict[str, Any]]  # by name of the parameter; of the gradient scaler, by SCALER
SCALER = "(gradient scaler)"  # no parameter has such a name
BeforeStep = Callable[[int, int], object]
KeepOptimizer = Literal["personal", "reset", "keep"]


def nothing(*args: object) -> None:
    """Nobody watches."""


class Interrupted(Exception):
    """The run was asked to stop in the middle of local training."""


@dataclass(frozen=True)
class Plan:
    """How a client trains.

    Attributes:
        stage: The stage that it belongs to.
        seed: Of the run; random streams of a client are derived from it.
        epochs: Passes over the client's samples, unless `steps` is given.
        steps: Batches, however many passes they take.
        lr_factor: What the learning-rate schedule multiplies by in this round.
        optimizer_state: Kept between rounds for `personal` parameters, for all (`keep`) or for none (`reset`).
        gradient_clip_val: Largest norm of the gradient; None does not clip.
        should_stop: Asked while a process of its own trains the client.
        before_step: Called before every batch with the steps that are done and how many there are in all; to end the
            local training, it raises `Interrupted`.
        after_epoch: Called after every epoch.
        limit_batches: Batches of an epoch at most, or a fraction of them; None is all.
        is_shuffled: Whether every epoch has an order of its own; else all begin with the same batches.
    """

    stage: Stage
    seed: int
    epochs: int = 1
    steps: int | None = None
    lr_factor: float = 1.0
    optimizer_state: KeepOptimizer = "personal"
    gradient_clip_val: float | None = None
    should_stop: Callable[[], bool] = bool  # which is False
    before_step: BeforeStep = nothing
    after_epoch: Callable[[], object] = nothing
    limit_batches: int | float | None = None
    is_shuffled: bool = True

    def num_batches(self, available: int) -> int:
        """Batches of an epoch, of so many that there are; at least one.

        Example:
            >>> [Plan(Stage("s"), 0, limit_batches=limit).num_batches(7) for limit in (None, 3, 10, 0.5, 0.01)]
            [7, 3, 7, 3, 1]
        """
        limit = self.limit_batches
        if limit is None:
            return available
        wanted = limit if isinstance(limit, int) else max(1, int(limit * available))
        return min(wanted, available)

    def num_steps(self, available: int) -> int:
        """Steps of a local training, with so many batches in an epoch; early stopping may leave some out."""
        if self.steps is not None:
            return self.steps
        return self.epochs * self.num_batches(available)


@dataclass(eq=False)
class ClientState:
    """What stays with a client between rounds: its personal state, of each stage's optimiser what goes with it, and
    what the encoder of its uploads has lost so far.
    """

    state: State = field(default_factory=dict)
    optimizer: dict[str, OptimizerState] = field(default_factory=dict)
    residual: State = field(default_factory=dict)


@dataclass
class LocalResult:
    """What local training returns: an upload if the stage has one, what stays with the client, and means of its logs.

    `epochs` holds what its model came to on the way: epoch, data, metric and value. What its own validation logged
    stands apart: it was measured on other samples. `skipped` is the number of steps if none of them had a loss;
    `overflowed`, if all were skipped because gradients overflowed (16-mixed).
    """

    upload: Upload | None
    client_state: ClientState
    logs: dict[str, float]
    epochs: list[tuple[int, str, str, float]] = field(default_factory=list)
    validation_logs: dict[str, float] = field(default_factory=dict)
    skipped: int = 0
    overflowed: int = 0
