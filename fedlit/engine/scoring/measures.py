"""What is measured of every model: the method's loss, its metrics, and those of the user."""

from collections.abc import Mapping

from torchmetrics import Metric

from fedlit.methods.base import FederatedModule, metrics_of, task_of
from fedlit.tasks import Classification

LOSS = "loss"


def measures_classes(method: FederatedModule) -> bool:
    """Whether cross-entropy and accuracy are all that a method measures; of many clients they come in one pass."""
    kind = type(method)
    is_own = kind.loss is not FederatedModule.loss or kind.metrics is not FederatedModule.metrics
    return not is_own and "loss" not in vars(method) and type(task_of(method)) is Classification


class Measures:
    """What is measured of every model of a method.

    Args:
        method: Whose `loss` and `metrics`.
        more: By `trainer.metrics`.

    Attributes:
        own: The method's metrics, by name.
    """

    def __init__(self, method: FederatedModule, more: Mapping[str, Metric]) -> None:
        self.method = method
        self.more = more
        self.own = metrics_of(method)

    @property
    def are_of_classes(self) -> bool:
        """Whether they are those of a classification, which many clients can have in one pass."""
        return measures_classes(self.method)

    @property
    def metrics(self) -> dict[str, Metric]:
        """All but the loss."""
        return {**self.own, **self.more}

    @property
    def names(self) -> list[str]:
        """In the order of records: the method's own, the loss, the user's."""
        return [*self.own, LOSS, *self.more]

    @property
    def first(self) -> str:
        """What models are compared by unless the user says."""
        return next(iter(self.own), LOSS)

    def rises(self, name: str) -> bool:
        """Whether a higher value is a better one: as its metric says, else whatever is no loss."""
        says = getattr(self.metrics.get(name), "higher_is_better", None)
        if says is not None:
            return bool(says)
        return LOSS not in name

    @property
    def directions(self) -> dict[str, str]:
        """Whether each is to rise or to fall, in order, for whoever reads the records."""
        return {name: "max" if self.rises(name) else "min" for name in self.names}

    def told(self, name: str) -> str:
        """A metric, as whoever asked for it knows it."""
        if name in self.more:
            return f"`trainer.metrics.{name}`"
        return f"{name!r} of `metrics` of {type(self.method).__name__}"
