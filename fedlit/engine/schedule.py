"""Rounds laid out over the stages of a method, and how a client trains in each."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from lightning.pytorch.cli import LRSchedulerCallable
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlit.engine.options import Options
from fedlit.engine.plan import Plan
from fedlit.methods.stage import Stage


@dataclass(frozen=True)
class ScheduledRound:
    """A round in the programme.

    Attributes:
        stage: What it belongs to.
        lr_factor: What the learning-rate schedule multiplies by in it.
        is_last: Whether it is the last of its stage.
    """

    stage: Stage
    lr_factor: float
    is_last: bool


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
        self.rounds: list[ScheduledRound] = []
        for stage in stages:
            length = options.num_rounds if stage.rounds is None else stage.rounds
            if options.fast_dev_run:
                length = min(length, 1)
            for index, factor in enumerate(lr_factors(options.lr_schedule, length), start=1):
                self.rounds.append(ScheduledRound(stage, factor, is_last=index == length))

    def __len__(self) -> int:
        return len(self.rounds)

    def stage(self, number: int) -> Stage:
        """The stage of a round; before the first round, the first stage."""
        return self.rounds[min(max(number, 1), len(self)) - 1].stage

    def is_last(self, number: int) -> bool:
        """Whether the round is the last of its stage."""
        return self.rounds[number - 1].is_last

    def plan(self, number: int, should_stop: Callable[[], bool], client: int) -> Plan:
        """How a client trains in a round."""
        options = self.options
        scheduled = self.rounds[number - 1]
        stage = scheduled.stage
        epochs = options.epochs_of(client) if stage.epochs is None else stage.epochs
        steps = options.local_steps if stage.epochs is None else None
        if options.fast_dev_run:
            steps = 1 if epochs else steps
            epochs = 1
        is_over = scheduled.is_last and stage is not self.stages[-1]  # the last stage may be made longer some day
        return Plan(
            stage=stage,
            seed=options.seed,
            epochs=epochs,
            steps=steps,
            lr_factor=scheduled.lr_factor,
            optimizer_state="reset" if is_over else options.optimizer_state,
            gradient_clip_val=options.gradient_clip_val,
            should_stop=should_stop,
        )


def lr_factors(schedule: LRSchedulerCallable | None, rounds: int) -> list[float]:
    """What the schedule multiplies the learning rate by in each round of a stage.

    Example:
        >>> lr_factors(lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5), 5)
        [1.0, 1.0, 0.5, 0.5, 0.25]
    """
    if schedule is None:
        return [1.0] * rounds
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)
    factors = []
    try:
        stepper = schedule(optimizer)
        if isinstance(stepper, ReduceLROnPlateau):
            raise ValueError("it is stepped by rounds; ReduceLROnPlateau waits for a metric.")
        for _ in range(rounds):
            factors.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            stepper.step()
    except (ValueError, TypeError, ArithmeticError) as error:  # some schedules end after so many steps
        raise ValueError(f"`trainer.lr_schedule`: {str(error).splitlines()[0]}") from error
    return factors
