"""The options of a federation, checked and fixed: the only place where they live."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from lightning.pytorch import Callback
from lightning.pytorch.cli import LRSchedulerCallable
from lightning.pytorch.loggers import Logger
from torchmetrics import Metric

from fedlit.engine.plan import KeepOptimizer

LOGGED = ("trained_on_train", "trained_on_own", "global_on_server")  # under whatever name a method gives
AT_LEAST_ONE = (
    "num_rounds",
    "local_epochs",
    "local_steps",
    "min_clients",
    "eval_every_n_rounds",
    "eval_every_n_epochs",
    "save_every_n_rounds",
    "num_threads",
    "num_nodes",
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `Federation` was given; it says what each means. Defaults stand there, and only there."""

    num_rounds: int
    local_epochs: int | None
    local_steps: int | None
    client_epochs: Mapping[int, int]
    fraction_fit: float
    min_clients: int
    eval_every_n_rounds: int
    eval_every_n_epochs: int | None
    save_every_n_rounds: int
    monitor: str | None
    lr_schedule: LRSchedulerCallable | None
    optimizer_state: KeepOptimizer
    batch_norm: Literal["average", "local"]
    gradient_clip_val: float | None
    metrics: Mapping[str, Metric]
    accelerator: str
    devices: int | str
    num_nodes: int
    precision: str
    personal_memory: float
    num_threads: int
    fast: bool
    logger: Logger | Sequence[Logger] | bool = field(repr=False)
    callbacks: Sequence[Callback] = field(repr=False)
    default_root_dir: Path
    fast_dev_run: bool
    enable_progress_bar: bool
    report: bool
    seed: int
    client_timeout: float | None
    max_weight_ratio: float | None
    max_norm_ratio: float | None
    max_round_retries: int

    def __post_init__(self) -> None:
        self._fix()
        for name in AT_LEAST_ONE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"`trainer.{name}` must be at least 1, got {value}.")
        if self.local_epochs is not None and self.local_steps is not None:
            raise ValueError("`trainer.local_epochs` and `trainer.local_steps` exclude each other; give one.")
        if not 0 < self.fraction_fit <= 1:
            raise ValueError(f"`trainer.fraction_fit` must lie in (0, 1], got {self.fraction_fit}.")
        if not self.personal_memory >= 0:
            raise ValueError(f"`trainer.personal_memory` must be at least 0 gigabytes, got {self.personal_memory}.")
        if self.client_timeout is not None and not (isfinite(self.client_timeout) and self.client_timeout > 0):
            raise ValueError(f"`trainer.client_timeout` must be above 0 seconds, got {self.client_timeout}.")
        for name in ("max_weight_ratio", "max_norm_ratio"):
            ratio = getattr(self, name)
            if ratio is not None and not (isfinite(ratio) and ratio >= 1):
                raise ValueError(f"`trainer.{name}` must be at least 1, got {ratio}.")
        if self.max_round_retries < 0:
            raise ValueError(f"`trainer.max_round_retries` must be at least 0, got {self.max_round_retries}.")
        clip = self.gradient_clip_val
        if clip is not None and not (isfinite(clip) and clip > 0):
            raise ValueError(f"`trainer.gradient_clip_val` must be positive, got {clip}.")
        for client, epochs in self.client_epochs.items():
            if epochs < 1:
                raise ValueError(f"`trainer.client_epochs[{client}]` must be at least 1, got {epochs}.")
        self._check_monitor()

    def _fix(self) -> None:
        """Copies that cannot be changed: what a user goes on to do with a list or a mapping is not meant for a run."""
        for name in ("client_epochs", "metrics"):
            object.__setattr__(self, name, MappingProxyType({**getattr(self, name)}))
        for name in ("logger", "callbacks"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))

    def _check_monitor(self) -> None:
        """What is never measured would never be best."""
        if self.monitor is None:
            return
        metrics = ["acc", "loss", *self.metrics]
        metric, _, where = self.monitor.partition("/")
        is_known = metric in metrics or where in LOGGED
        if not is_known or not re.fullmatch(r"\w+_on_(pooled|own|unseen|train|server)", where):
            raise ValueError(
                "`trainer.monitor` must be metric/model_on_data, such as acc/global_on_pooled or loss/personal_on_own, "
                f"with a metric of {', '.join(metrics)}, got {self.monitor}."
            )

    def epochs_of(self, client: int) -> int:
        """Passes over a client's samples in a visit, where its stage does not say."""
        return self.client_epochs.get(client, self.local_epochs or 1)
