"""Rounds laid out over the stages of a method, and how a client trains in each."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from lightning.pytorch.cli import LRSchedulerCallable
from torch.optim.lr_scheduler import ReduceLROnPlateau

from fedlit.engine.visit import Plan
from fedlit.methods.stage import Stage


class Schedule:
    """Which stage a round belongs to; rounds are counted from 1 through all stages.

    Args:
        stages: The programme of the method.
        num_rounds: Rounds of a stage that does not say how many.
        lr_schedule: A torch schedule, begun anew with every stage.
        fast_dev_run: One round of every stage.
    """

    def __init__(
        self, stages: list[Stage], num_rounds: int, lr_schedule: LRSchedulerCallable | None, fast_dev_run: bool = False
    ) -> None:
        self.stages = stages
        lengths = [num_rounds if stage.rounds is None else stage.rounds for stage in stages]
        lengths = [min(length, 1) for length in lengths] if fast_dev_run else lengths
        self.rounds = [(s, i, i + 1 == n) for s, n in zip(stages, lengths, strict=True) for i in range(n)]
        self._factors = {s.name: lr_factors(lr_schedule, n) for s, n in zip(stages, lengths, strict=True)}

    def __len__(self) -> int:
        return len(self.rounds)

    def stage(self, number: int) -> Stage:
        """The stage of a round; before the first round, the first stage."""
        return self.rounds[min(max(number, 1), len(self)) - 1][0]

    def is_last(self, number: int) -> bool:
        """Whether the round is the last of its stage."""
        return self.rounds[number - 1][2]

    def plan(self, number: int, options: Mapping[str, Any], should_stop: Callable[[], bool], client: int) -> Plan:
        """How a client trains in a round, by the options of the federation."""
        stage, index, last = self.rounds[number - 1]
        over = last and stage is not self.stages[-1]  # the last stage may be made longer some day
        common = options["local_epochs"] or 1
        epochs = (options["client_epochs"] or {}).get(client, common) if stage.epochs is None else stage.epochs
        steps = options["local_steps"] if stage.epochs is None else None
        dev = options["fast_dev_run"]
        return Plan(
            stage=stage,
            seed=options["seed"],
            epochs=1 if dev else epochs,
            steps=1 if dev and epochs else steps,
            lr_factor=self._factors[stage.name][index],
            optimizer_state="reset" if over else options["optimizer_state"],
            gradient_clip_val=options["gradient_clip_val"],
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
