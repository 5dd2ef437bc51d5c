"""The last and the best mean over clients of every metric."""

from collections.abc import Mapping
from math import isfinite

from fedlit.records.rows import Row, summary

LOSS = "loss"
# Unless the user says: the model that clients use themselves, on their own samples.
WHERE = ("personal_on_own", "global_on_own", "global_on_pooled")


class BestTracker:
    """Means over clients, by key such as ``acc/global_on_own``.

    Args:
        directions: Of every metric, whether it is to rise (`max`) or to fall (`min`); the first is what counts unless
            the user says.
        monitor: The key that best.ckpt is the best of; None is the first metric on the first of `WHERE` that is
            measured.
    """

    def __init__(self, directions: Mapping[str, str], monitor: str | None) -> None:
        self.directions = directions
        self.monitor = monitor
        self.last: dict[str, dict[str, float]] = {}
        self.best: dict[str, dict[str, float]] = {}

    def note(self, round: int, rows: list[Row]) -> bool:
        """Note a round's rows; whether the monitored metric improved."""
        for key, parts in summary(rows).items():
            self.last[key] = parts
            value = parts["mean"]
            sign = 1 if self.rises(key) else -1
            if isfinite(value) and (key not in self.best or sign * value > sign * self.best[key]["value"]):
                self.best[key] = {"value": value, "round": round}
        first = next(iter(self.directions))
        monitors = [f"{first}/{where}" for where in WHERE]
        watched = self.monitor or next((key for key in monitors if key in self.best), None)
        return watched in self.best and self.best[watched]["round"] == round

    @property
    def best_with_direction(self) -> dict[str, dict[str, float]]:
        """The best of metrics and losses; of what else a method logs, the better direction is unknown."""
        found = {}
        for key, entry in self.best.items():
            metric = key.rpartition("/")[0]
            if metric in self.directions or LOSS in metric or key == self.monitor:
                found[key] = entry
        return found

    def rises(self, key: str) -> bool:
        """Whether a higher mean is a better one; of what else a method logs, whatever is no loss."""
        metric = key.rpartition("/")[0]
        if metric in self.directions:
            return self.directions[metric] == "max"
        return LOSS not in metric
