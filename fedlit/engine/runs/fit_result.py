"""What a fit leaves, for whoever goes on in Python."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from fedlit.methods.base import FederatedModule
from fedlit.records.frames import read_metrics
from fedlit.records.rows import Row
from fedlit.rng import isolated

if TYPE_CHECKING:
    from pandas import DataFrame

Method = FederatedModule | Callable[[], FederatedModule]


@dataclass(frozen=True)
class FitResult:
    """What a fit leaves.

    Attributes:
        method: That was fitted.
        folder: Of the run; None if it was a development run.
        rows: What was measured in the last round of this fit.
        stopped_by: The signal that ended it early, if one did.
        network: Gives a client's network, or the global one: `Federation.network`.
    """

    method: FederatedModule = field(repr=False)
    folder: Path | None
    rows: list[Row] = field(repr=False)
    stopped_by: int | None
    network: Callable[..., nn.Module] = field(repr=False)

    @cached_property
    def metrics(self) -> "DataFrame":
        """All of metrics.csv, of every round, by `fedlit.read_metrics`; needs the extra `report`."""
        if self.folder is None:
            raise ValueError("A development run leaves no metrics; its last ones are `rows`.")
        return read_metrics(self.folder)

    @property
    def checkpoint(self) -> Path | None:
        """The last one; None without `trainer.enable_checkpointing`."""
        return self._checkpoint("last")

    @property
    def best_checkpoint(self) -> Path | None:
        """The best by `trainer.monitor`, or by the clients' own accuracy; None where there is none."""
        return self._checkpoint("best")

    def _checkpoint(self, which: str) -> Path | None:
        if self.folder is None:
            return None
        path = self.folder / "checkpoints" / f"{which}.ckpt"
        return path if path.is_file() else None


def built(model: Any, seed: int) -> FederatedModule:
    """A method as it is, or built by a function under the seed: its first weights follow from it, too."""
    if isinstance(model, nn.Module) or not callable(model):  # what is no method is refused at the door
        return model
    with isolated(seed):
        return model()
