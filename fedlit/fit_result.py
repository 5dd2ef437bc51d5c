"""What a fit returns: paths, metrics and networks, shown as a table and in a notebook with the curves."""

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from torch import nn

from fedlit.records.progress import score_rows, table
from fedlit.records.reading import read_metrics
from fedlit.records.rows import Row, summary

if TYPE_CHECKING:
    from pandas import DataFrame

    from fedlit.methods.base import FederatedModule


@dataclass(frozen=True, repr=False)
class FitResult:
    """The result of a fit. `print` shows its metrics; a notebook shows them with the curves.

    Attributes:
        method: That was fitted.
        folder: Of the run; None if it was a development run.
        rows: What was measured in the last round of this fit.
        stopped_by: The signal that ended it early, if one did.
        network: Gives a client's network, or the global one: `Federation.network`.
        round: The last round.
        best: The best mean of every metric, as `value`, and its `round`.
    """

    method: "FederatedModule"
    folder: Path | None
    rows: list[Row]
    stopped_by: int | None
    network: Callable[..., nn.Module]
    round: int = 0
    best: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @cached_property
    def metrics(self) -> "DataFrame":
        """All of metrics.csv, of every round, by `fedlit.read_metrics`; needs the extra `report`."""
        if self.folder is None:
            raise ValueError("A development run leaves no metrics; its last ones are `rows`.")
        return read_metrics(self.folder)

    @property
    def checkpoint(self) -> Path | None:
        """The last one; None without `trainer.enable_checkpointing`."""
        return self._existing("checkpoints/last.ckpt")

    @property
    def best_checkpoint(self) -> Path | None:
        """The best by `trainer.monitor`, or by the clients' own accuracy; None where there is none."""
        return self._existing("checkpoints/best.ckpt")

    def _existing(self, name: str) -> Path | None:
        path = None if self.folder is None else self.folder / name
        return path if path is not None and path.is_file() else None

    def __repr__(self) -> str:
        where = "a development run" if self.folder is None else str(self.folder)
        return f"<FitResult of {type(self.method).__name__} after round {self.round}: {where}>"

    def __str__(self) -> str:
        scores = summary(self.rows)
        return f"{self!r}\n{table(score_rows(scores, self.best))}" if scores else repr(self)

    def _repr_html_(self) -> str:
        """A small table of metrics, the paths of the run, and its curves."""
        title = f"<b>{type(self.method).__name__}</b> after round {self.round}"
        parts = [f"<div>{title}</div>"]
        if self.rows:
            header, *rows = score_rows(summary(self.rows), self.best)
            lines = [_line("th", header), *(_line("td", row) for row in rows)]
            parts.append(f"<table>{''.join(lines)}</table>")
        if curves := self._existing("curves.png"):
            data = base64.b64encode(curves.read_bytes()).decode()
            parts.append(f'<img alt="Curves over rounds" style="max-width: 100%" src="data:image/png;base64,{data}">')
        if self.folder is not None:
            links = [str(self.folder)]
            for name in ("report.html", "metrics.csv", "checkpoints/last.ckpt", "checkpoints/best.ckpt"):
                if path := self._existing(name):
                    links.append(f'<a href="{escape(str(path))}" target="_blank">{path.name}</a>')
            parts.append(f"<div>{', '.join(links)}</div>")
        return "".join(parts)


def _line(tag: str, cells: list[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
