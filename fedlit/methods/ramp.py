"""A number that moves over rounds."""

from dataclasses import dataclass

from fedlit.bounds import check_count, check_number


@dataclass(frozen=True)
class Ramp:
    """A weight that moves from where it starts `until` a value.

    Example:
        >>> [Ramp(until=0.5, rounds=4)(0.9, round) for round in (1, 2, 3, 4, 5, 6)]
        [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]
        >>> [Ramp(until=0.5, rounds=4, steps=2)(0.9, round) for round in (1, 2, 3, 4, 5, 6)]
        [0.9, 0.9, 0.7, 0.7, 0.5, 0.5]

    Args:
        until: Where it ends.
        rounds: Rounds that the whole way takes.
        steps: Equal steps in which it moves; none is a straight line.
    """

    until: float
    rounds: int
    steps: int | None = None

    def __post_init__(self) -> None:
        check_number("until", self.until)
        check_count("rounds", self.rounds)
        if self.steps is not None:
            check_count("steps", self.steps)

    def __call__(self, start: float, round: int) -> float:
        way = min(max(round - 1, 0) / self.rounds, 1.0)
        if self.steps is not None:
            way = int(way * self.steps) / self.steps
        return start * (1 - way) + self.until * way  # in this form never beyond either end
