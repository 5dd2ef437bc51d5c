"""Where `self.log` goes: to the mean of a local training, to the round, or to whoever made the mistake."""

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torchmetrics import Metric

from fedlit.engine.plan import UsageError
from fedlit.methods.base import FederatedModule

MANY = 1000
REDUCTIONS: dict[Any, str] = {
    torch.mean: "mean",
    torch.sum: "sum",
    torch.max: "max",
    torch.min: "min",
    max: "max",
    min: "min",
    sum: "sum",
}


class Means:
    """Means (or sums, maxima, minima) of what a local training logs, without a synchronisation or a sum per step."""

    def __init__(self) -> None:
        self.values: dict[str, list[Any]] = {}
        self.parts: dict[str, list[tuple[float, int]]] = {}  # reduced values, and how many they were
        self.reductions: dict[str, str] = {}  # of names that were logged with options
        self.weights: dict[str, int] = {}  # samples of a batch beyond the first, where `batch_size` was given
        self.metrics: dict[str, Metric] = {}
        self.last: dict[str, Any] = {}  # of names that were logged both on_step and on_epoch

    def __call__(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        if args or options or self.reductions:
            self._log(name, value, *args, **options)
        else:
            self._append(name, value)

    def _append(self, name: str, value: Any) -> None:
        if isinstance(value, Tensor):
            # A number where nobody waits for it; elsewhere a copy, since the method may go on writing into its tensor.
            value = value.item() if value.is_cpu and value.numel() == 1 else value.detach().clone()
        elif isinstance(value, Metric):
            self.metrics[name] = value
            return
        values = self.values.get(name)
        if values is None:
            values = self.values[name] = []
        values.append(value)
        if len(values) == MANY:
            self._add_up(name)

    def _log(
        self,
        name: str,
        value: Any,
        prog_bar: bool = False,
        logger: bool | None = None,
        on_step: bool | None = None,
        on_epoch: bool | None = None,
        reduce_fx: str | Callable[..., Any] = "mean",
        enable_graph: bool = False,
        sync_dist: bool = False,
        sync_dist_group: Any = None,
        add_dataloader_idx: bool = True,
        batch_size: int | None = None,
        metric_attribute: str | None = None,
        rank_zero_only: bool = False,
        **unknown: Any,
    ) -> None:
        """Lightning's arguments; local training has neither a bar, several processes nor several loaders."""
        for option in unknown:
            raise UsageError(f"`self.log({name!r}, {option}=...)`: there is no such argument; see docs/lightning.md.")
        _refuse(name, "enable_graph=True", enable_graph, "what is recorded has no gradient")
        _refuse(name, "sync_dist_group", sync_dist_group is not None, "one process has the whole client")
        if logger is False or (on_step is False and on_epoch is False):
            return
        self._reduce_by(name, reduce_fx)
        if on_step and on_epoch:
            self.last[name] = value
        if batch_size is not None and self.reductions[name] == "mean" and not isinstance(value, Metric):
            self.weights[name] = self.weights.get(name, 0) + batch_size - 1
            value = torch.as_tensor(value).detach().double() * batch_size
        self._append(name, value)

    def _reduce_by(self, name: str, reduce_fx: str | Callable[..., Any]) -> None:
        chosen = REDUCTIONS.get(reduce_fx, reduce_fx)
        if chosen not in REDUCTIONS.values():
            raise UsageError(f"`self.log({name!r}, reduce_fx=...)` must be mean, sum, max or min, got {reduce_fx}.")
        is_known = name in self.values or name in self.parts
        before = self.reductions.setdefault(name, "mean" if is_known else str(chosen))
        if before != chosen:
            raise UsageError(f"`self.log({name!r}, reduce_fx=...)` is {before} in one place and {chosen} in another.")

    def _add_up(self, name: str) -> None:
        values = self.values.pop(name)
        try:
            if len(values) == 1:
                total = float(values[0])
            else:
                how = self.reductions.get(name, "mean")
                total = float({"max": torch.amax, "min": torch.amin}.get(how, torch.sum)(_column(values), 0))
        except (ValueError, TypeError, RuntimeError) as error:
            raise UsageError(
                f"`self.log({name!r}, ...)` takes a number, a tensor of one element or a torchmetrics Metric: {error}"
            ) from error
        self.parts.setdefault(name, []).append((total, len(values)))

    def result(self) -> dict[str, float]:
        for name in list(self.values):
            self._add_up(name)
        reduced = {name: self._reduced(name) for name in self.parts}
        return reduced | {name: _number(name, metric) for name, metric in self.metrics.items()}

    def by_step_and_epoch(self) -> dict[str, float]:
        """What was logged both on_step and on_epoch, under the two names that Lightning gives it."""
        result = self.result() if self.last else {}
        found: dict[str, float] = {}
        for name, value in self.last.items():
            found[f"{name}_epoch"] = result[name]
            if not isinstance(value, Metric):
                found[f"{name}_step"] = float(value)
        return found

    def _reduced(self, name: str) -> float:
        totals = [total for total, _ in self.parts[name]]
        how = self.reductions.get(name, "mean")
        if how == "max":
            return max(totals)
        if how == "min":
            return min(totals)
        if how == "sum":
            return sum(totals)
        return sum(totals) / (sum(count for _, count in self.parts[name]) + self.weights.get(name, 0))


class EpochMeans:
    """The same, and beside it of the last epoch, for a schedule that waits for a value.

    Args:
        whole: What the whole local training logs.
    """

    def __init__(self, whole: Means) -> None:
        self.whole = whole
        self.epoch = Means()

    def __call__(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        self.whole(name, value, *args, **options)
        self.epoch(name, value, *args, **options)


def _column(values: list[Any]) -> Tensor:
    """All values in one tensor of float64."""
    first = values[0]
    if isinstance(first, Tensor) and all(isinstance(value, Tensor) and value.dtype == first.dtype for value in values):
        return torch.stack(values).cpu().double()  # one wait for the device
    if any(isinstance(value, Tensor) for value in values):
        values = [torch.as_tensor(value).cpu().double() for value in values]
        return torch.stack(values)
    return torch.tensor(values, dtype=torch.float64)


def _number(name: str, metric: Metric) -> float:
    try:
        return float(metric.compute())
    except (ValueError, TypeError, RuntimeError) as error:
        raise UsageError(f"`self.log({name!r}, ...)`: {type(metric).__name__} must give one number: {error}") from error


def _refuse(name: str, option: str, is_given: bool, why: str) -> None:
    if is_given:
        raise UsageError(f"`self.log({name!r}, {option})` has no meaning in a federation: {why}.")


@contextmanager
def logging_to(sink: Callable[..., None], parts: Iterable[FederatedModule]) -> Iterator[None]:
    """What these parts log goes to the sink, and afterwards where it went before."""
    before = [(vars(part), part._log_sink) for part in parts]
    for own, _ in before:
        own["_log_sink"] = sink
    try:
        yield
    finally:
        for own, old_sink in before:
            own["_log_sink"] = old_sink


@contextmanager
def logging_to_means(module: FederatedModule) -> Iterator[Means]:
    """What a method logs, noted."""
    means = Means()
    with logging_to(means, [module]):
        yield means


@contextmanager
def refusing_logs(module: FederatedModule, where: str) -> Iterator[None]:
    """Refuse what a method logs where no round records it."""

    def refuse(name: str, *args: Any, **options: Any) -> None:
        raise UsageError(
            f"`self.log({name!r}, ...)` in `{where}` would be recorded nowhere; log in local training, in `aggregate` "
            "or in `probe`, or write to `federation.logger` yourself."
        )

    with logging_to(refuse, [module]):
        yield


def check_probe_names(probed: dict[str, float], measured: Collection[str], module: FederatedModule) -> dict[str, float]:
    """Refuse names of a method's `probe` that the federation uses for its own metrics."""
    for name in set(measured) & probed.keys():
        raise UsageError(
            f"`probe` of {type(module).__name__} gives {name!r}, which the federation measures on the same samples; "
            "give it another name."
        )
    return probed
