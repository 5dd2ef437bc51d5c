"""The last and the best mean of every metric, and what best.ckpt is the best of."""

from collections.abc import Mapping
from math import isfinite

from torchmetrics import Metric

from fedlit.records.rows import Row, summary

# Unless the user says: the model that clients use themselves, on their own samples.
MONITORS = ("acc/personal_on_own", "acc/global_on_own", "acc/global_on_pooled")


class Scoreboard:
    """Means over clients, by key such as ``acc/global_on_own``.

    Args:
        metrics: The user's own, which may say whether a higher value is better.
        monitor: The key that best.ckpt is the best of; None is the first of `MONITORS` that is measured.
    """

    def __init__(self, metrics: Mapping[str, Metric], monitor: str | None) -> None:
        self.metrics = metrics
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
        watched = self.monitor or next((key for key in MONITORS if key in self.best), None)
        return watched in self.best and self.best[watched]["round"] == round

    def _is_better(self, key: str, value: float) -> bool:
        if key not in self.best:
            return True
        best = self.best[key]["value"]
        return value > best if self._rises(key) else value < best

    def _rises(self, key: str) -> bool:
        metric = key.rpartition("/")[0]
        if "loss" in metric:
            return False
        return getattr(self.metrics.get(metric), "higher_is_better", True) is not False
