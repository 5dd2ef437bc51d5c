"""Rounds laid out over the stages of a method, and how a client trains in each."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlit.data.client import SERVER
from fedlit.engine.options import Options
from fedlit.engine.plan import BeforeStep, Plan, unwatched
from fedlit.methods.stage import Stage

MOST_SCHEDULED = 1_000_000  # rounds whose learning rates are worked out before the first


@dataclass(frozen=True)
class StageRounds:
    """The rounds of a stage.

    Attributes:
        stage: What they belong to.
        before: Rounds of earlier stages.
        length: How many they are.
        lr_factors: What the learning-rate schedule multiplies by in each; empty without one.
    """

    stage: Stage
    before: int
    length: int
    lr_factors: list[float]

    @property
    def last(self) -> int:
        """The number of its last round."""
        return self.before + self.length

    def lr_factor(self, number: int) -> float:
        if not self.lr_factors:
            return 1.0
        return self.lr_factors[number - self.before - 1]


class Schedule:
    """Which stage a round belongs to; rounds are counted from 1 through all stages.

    Args:
        stages: The programme of the method.
        options: Of the federation; `num_rounds` is for stages that do not say how many, and the learning-rate
            schedule begins anew with every stage.
    """

    def __init__(self, stages: list[Stage], options: Options) -> None:
        self.stages = stages
        self.options = options
        self.parts: list[StageRounds] = []
        before = 0
        for stage in stages:
            length = options.num_rounds if stage.rounds is None else stage.rounds
            if options.fast_dev_run:
                length = min(length, 1)
            self.parts.append(StageRounds(stage, before, length, lr_factors(options.lr_schedule, length)))
            before += length

    def __len__(self) -> int:
        return self.parts[-1].last

    def stage(self, number: int) -> Stage:
        """The stage of a round; before the first round, the first stage."""
        return self._part(number).stage

    def is_last(self, number: int) -> bool:
        """Whether the round is the last of its stage."""
        return number == self._part(number).last

    def _part(self, number: int) -> StageRounds:
        within = min(max(number, 1), len(self))
        return next(part for part in self.parts if within <= part.last)

    def plan(
        self, number: int, should_stop: Callable[[], bool], client: int, before_step: BeforeStep = unwatched
    ) -> Plan:
        """How a client trains in a round."""
        options = self.options
        part = self._part(number)
        stage = part.stage
        epochs, steps = self._length(stage, client)
        is_over = number == part.last and stage is not self.stages[-1]  # the last stage may be made longer some day
        return Plan(
            stage=stage,
            seed=options.seed,
            epochs=epochs,
            steps=steps,
            lr_factor=part.lr_factor(number),
            optimizer_state="reset" if is_over else options.optimizer_state,
            gradient_clip_val=options.gradient_clip_val,
            should_stop=should_stop,
            before_step=before_step,
            **self._batches(),
        )

    def follow_up(
        self, number: int, should_stop: Callable[[], bool], before_step: BeforeStep = unwatched
    ) -> Plan | None:
        """How the server trains at the end of a round of clients, if it does."""
        follower = self._part(number).stage.followed_by
        if follower is None:
            return None
        epochs, steps = self._length(follower, SERVER)
        return Plan(
            stage=follower,
            seed=self.options.seed,
            epochs=epochs,
            steps=steps,
            # What it trains was overwritten by the clients' since.
            optimizer_state="keep" if self.options.optimizer_state == "keep" else "reset",
            gradient_clip_val=self.options.gradient_clip_val,
            should_stop=should_stop,
            before_step=before_step,
            **self._batches(),
        )

    def _batches(self) -> dict[str, Any]:
        """How many batches an epoch has, and whether they are others in every epoch."""
        options = self.options
        limit = options.overfit_batches if options.limit_train_batches is None else options.limit_train_batches
        return {"limit_batches": limit, "is_shuffled": options.overfit_batches is None}

    def _length(self, stage: Stage, client: int) -> tuple[int, int | None]:
        """Epochs of a visit, and its steps if these are counted."""
        options = self.options
        epochs = options.epochs_of(client) if stage.epochs is None else stage.epochs
        steps = options.local_steps if stage.epochs is None else None
        if not options.fast_dev_run:
            return epochs, steps
        return min(epochs, 1), 1 if epochs else steps


def lr_factors(schedule: LRSchedulerCallable | None, rounds: int) -> list[float]:
    """What the schedule multiplies the learning rate by in each round of a stage; empty without a schedule.

    Example:
        >>> lr_factors(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5), 5)
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    if schedule is None:
        return []
    if rounds > MOST_SCHEDULED:
        raise ValueError(f"`trainer.lr_schedule` takes `trainer.num_rounds` of at most {MOST_SCHEDULED}, got {rounds}.")
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    factors: list[float] = []
    try:
        stepper = schedule(optimizer)
        if isinstance(stepper, ReduceLROnPlateau):
            raise ValueError("it is stepped by rounds; ReduceLROnPlateau waits for a metric.")
        for _ in range(rounds):
            factor = float(optimizer.param_groups[0]["lr"])
            if not isfinite(factor):
                raise ValueError(f"it multiplies the learning rate by {factor} in round {len(factors) + 1}.")
            factors.append(factor)
            optimizer.step()
            stepper.step()
    except Exception as error:  # some schedules end after so many steps; one's own raises what it likes
        lines = str(error.args[0] if error.args else type(error).__name__).splitlines()
        raise ValueError(f"`trainer.lr_schedule`: {lines[0]}") from error
    return factors
