"""Callbacks of a federation: Lightning's `setup`, `on_fit_start`, `on_fit_end`, `teardown`, and the ends of a round."""

from typing import TYPE_CHECKING

from lightning.pytorch import Callback
from lightning.pytorch.utilities.model_helpers import is_overridden

from fedlit.methods.base import FederatedModule
from fedlit.records.rows import Row, summary

if TYPE_CHECKING:
    from fedlit.federation import Federation

CALLED = {"setup", "teardown", "on_fit_start", "on_fit_end"}


class FederationCallback(Callback):
    """A callback that is also told of rounds."""

    def on_round_start(self, federation: "Federation", module: FederatedModule, round: int, clients: list[int]) -> None:
        """The clients of the round are drawn."""

    def on_round_end(self, federation: "Federation", module: FederatedModule, round: int, rows: list[Row]) -> None:
        """The round is aggregated, evaluated and saved; set `federation.should_stop` to end the fit here."""


class StopAt(FederationCallback):
    """End the fit, whatever stages were still to come, when the mean of a metric reaches a value.

    Args:
        value: What to reach.
        metric: Such as `acc/global_on_pooled` or `acc/personal_on_own`.
    """

    def __init__(self, value: float, metric: str = "acc/global_on_pooled") -> None:
        self.value, self.metric = value, metric

    def on_fit_start(self, federation: "Federation", module: FederatedModule) -> None:
        self._look(federation, federation.state.scores.last)  # a run that goes on may have been there before

    def on_round_end(self, federation: "Federation", module: FederatedModule, round: int, rows: list[Row]) -> None:
        self._look(federation, summary(rows))

    def _look(self, federation: "Federation", last: dict[str, dict[str, float]]) -> None:
        if self.metric in last and last[self.metric]["mean"] >= self.value:
            federation.should_stop = True


def as_callbacks(given: list[Callback] | Callback | None) -> list[Callback]:
    """A list of callbacks; one that waits for hooks of the Trainer would silently do nothing and is refused."""
    callbacks = [*given] if isinstance(given, list) else [given] if given else []
    hooks = [name for name in vars(Callback) if name.startswith("on_") and name not in CALLED]
    for callback in callbacks:
        unheard = [name for name in hooks if is_overridden(name, callback, Callback)]
        if unheard and not isinstance(callback, FederationCallback):
            raise ValueError(
                f"`trainer.callbacks`: {type(callback).__name__} waits for `{unheard[0]}`, which a federation never "
                "calls; derive from fedlit.callbacks.FederationCallback, which is told of rounds."
            )
    return callbacks
