"""The last and the best mean of every metric, and what best.ckpt is the best of."""

from math import isfinite

from fedlit.engine.scoring.measures import LOSS, Measures
from fedlit.records.rows import Row, summary

# Unless the user says: the model that clients use themselves, on their own samples.
WHERE = ("personal_on_own", "global_on_own", "global_on_pooled")


class Scoreboard:
    """Means over clients, by key such as ``acc/global_on_own``.

    Args:
        measures: What is measured; the first is what counts unless the user says.
        monitor: The key that best.ckpt is the best of; None is the first metric on the first of `WHERE` that is
            measured.
    """

    def __init__(self, measures: Measures, monitor: str | None) -> None:
        self.measures = measures
        self.monitor = monitor
        self.last: dict[str, dict[str, float]] = {}
        self.best: dict[str, dict[str, float]] = {}

    def resume(self, last: dict[str, dict[str, float]], best: dict[str, dict[str, float]]) -> None:
        """Go on from what a checkpoint holds."""
        self.last = last
        self.best = best

    def note(self, round: int, rows: list[Row]) -> bool:
        """Note a round's rows; whether the monitored metric improved."""
        for key, parts in summary(rows).items():
            self.last[key] = parts
            value = parts["mean"]
            if isfinite(value) and self._is_better(key, value):
                self.best[key] = {"value": value, "round": round}
        monitors = [f"{self.measures.first}/{where}" for where in WHERE]
        watched = self.monitor or next((key for key in monitors if key in self.best), None)
        return watched in self.best and self.best[watched]["round"] == round

    def _is_better(self, key: str, value: float) -> bool:
        if key not in self.best:
            return True
        best = self.best[key]["value"]
        return value > best if self.rises(key) else value < best

    @property
    def rated(self) -> dict[str, dict[str, float]]:
        """The best of metrics and losses; of what else a method logs, such as a count, nobody knows what is better."""
        measured = self.measures.names
        found = {}
        for key, entry in self.best.items():
            metric = key.rpartition("/")[0]
            if metric in measured or LOSS in metric or key == self.monitor:
                found[key] = entry
        return found

    def rises(self, key: str) -> bool:
        """Whether a higher mean is a better one."""
        return self.measures.rises(key.rpartition("/")[0])
