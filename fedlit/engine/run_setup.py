"""Before the first round, on every process: the data, the checkpoint to resume, and the folder of the run."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TextIO

import torch
from lightning.fabric import Fabric

from fedlit.bounds import check_kind
from fedlit.data import FederatedData
from fedlit.data.stand_in import stand_in
from fedlit.engine.client_store import sweep_left_behind
from fedlit.engine.cluster.processes import broadcast, meet
from fedlit.engine.cluster.strategy import ClientParallelStrategy
from fedlit.engine.config_diff import Change
from fedlit.engine.network_checks import layout_for
from fedlit.engine.options import Deterministic, Options
from fedlit.engine.precision import check_precision
from fedlit.engine.state import FederationState
from fedlit.fast.memory import lay_out
from fedlit.methods.base import FederatedModule
from fedlit.notices import Notice
from fedlit.records.checkpoint import load_last
from fedlit.records.rewinding import check_records
from fedlit.records.run_folder import claim_folder, find_checkpoint, folder_of, lock_folder, sweep, sweep_runs

SHOWN_CHANGES = 20
CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"  # cuBLAS reads it when it is first used


def set_deterministic(wanted: Deterministic | None) -> None:
    """Set what Lightning's Trainer sets for `deterministic`; None sets nothing."""
    if wanted is None:
        return
    torch.use_deterministic_algorithms(bool(wanted), warn_only=wanted == "warn")
    if wanted:
        torch.backends.cudnn.benchmark = False  # it picks algorithms by how long they take
        os.environ.setdefault(CUBLAS_WORKSPACE, ":4096:8")


@dataclass
class ResumePoint:
    """The checkpoint that a command begins from, if any.

    Attributes:
        checkpoint: The file that was read, if one was.
        content: What was in it.
        fallback: Why it is not the file that was meant.
        changes: Options that are not those of the rounds before.
    """

    checkpoint: Path | None = None
    content: dict[str, Any] = field(default_factory=dict)
    fallback: str | None = None
    changes: list[Change] = field(default_factory=list)

    def events(self) -> list[dict[str, Any]]:
        """Events for events.jsonl."""
        found: list[dict[str, Any]] = []
        if self.fallback is not None:
            found.append({"what": "fell_back", "on": str(self.checkpoint), "reason": self.fallback})
        return found + [{"what": "changed", **change._asdict()} for change in self.changes]

    def warn_of_changes(self) -> None:
        """A line each."""
        for change in self.changes[:SHOWN_CHANGES]:
            warnings.warn(f"{change}, from round {self.content['round'] + 1} on.", Notice, stacklevel=2)
        if len(self.changes) > SHOWN_CHANGES:
            more = len(self.changes) - SHOWN_CHANGES
            warnings.warn(f"{more} more options changed; events.jsonl has them.", Notice, stacklevel=2)


def ready_data(fabric: Fabric, datamodule: FederatedData | None) -> FederatedData:
    """The data, set up on every process, and fetched by the first."""
    data = FederatedData() if datamodule is None else datamodule
    check_kind("data", data, FederatedData, "a FederatedData")
    launch(fabric)
    if fabric.is_global_zero:
        data.prepare_data()
    meet(fabric)
    data.setup()
    return data


def launch(fabric: Fabric) -> None:
    """Start all processes, unless they run already."""
    if not fabric._launched:
        try:
            fabric.launch()
        except BaseException:  # a signal, for one; the children would wait for this process
            if isinstance(fabric.strategy, ClientParallelStrategy):
                fabric.strategy.end_children()
            raise
    check_precision(fabric)


def data_or_stand_in(
    fabric: Fabric, datamodule: FederatedData | None, ckpt_path: str | None, options: Options
) -> FederatedData:
    """The data, or, where they are not there, what a checkpoint knows of them: enough to use its networks."""
    launch(fabric)
    checkpoint = None if ckpt_path is None else chosen_checkpoint(fabric, ckpt_path, options, training=False)
    kept = None if checkpoint is None else read_checkpoint(checkpoint).content.get("preprocessing")
    if kept is None or fabric.world_size > 1:
        return ready_data(fabric, datamodule)
    if datamodule is None:
        return stand_in(kept, None)
    try:
        return ready_data(fabric, datamodule)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        try:
            data = stand_in(kept, datamodule)
        except ValueError:
            raise error from None
        message = f"The data are not there ({reason.rstrip('.')}); inputs are prepared as in the run of {checkpoint}."
        warnings.warn(message, Notice, stacklevel=2)
        return data


def on_rank_0(fabric: Fabric, work: Callable[[], str | None]) -> str | None:
    """The result of rank 0, on every rank; if it raises, all end."""
    found = None
    refusal: Exception | None = None
    if fabric.is_global_zero:
        try:
            found = work()
        except (ValueError, OSError) as error:
            refusal = error
    is_refused, found = broadcast(fabric, [refusal is not None, found])
    if refusal is not None:
        raise refusal
    if is_refused:
        raise SystemExit(2)
    return found


def chosen_checkpoint(fabric: Fabric, ckpt_path: str | None, options: Options, training: bool) -> Path | None:
    """The checkpoint that rank 0 finds: another rank might find the folder that rank 0 is about to claim."""

    def find() -> str | None:
        found = find_checkpoint(ckpt_path, options.default_root_dir, training, options.run_name)
        return None if found is None else str(found)

    path = on_rank_0(fabric, find)
    return None if path is None else Path(path)


def read_checkpoint(path: Path | None) -> ResumePoint:
    """Read a checkpoint; where `last.ckpt` is damaged, warn and read the one before it."""
    if path is None:
        return ResumePoint()
    content, checkpoint, fallback = load_last(path)
    if fallback is not None:
        message = f"{fallback}; going back to {checkpoint.name}, of round {content['round']}."
        warnings.warn(message, Notice, stacklevel=2)
    return ResumePoint(checkpoint, content, fallback)


class RunFolder:
    """The folder of a run that trains: the checkpoint's own, or a new one. Held from before anything is read there.

    Args:
        fabric: Launched; the first process holds the folder.
        options: A development run has no folder.

    Attributes:
        path: The folder, once it is held.
    """

    def __init__(self, fabric: Fabric, options: Options) -> None:
        self.fabric = fabric
        self.options = options
        self.path: Path | None = None
        self._lock: TextIO | None = None

    def take(self, checkpoint: Path) -> None:
        """Resume in the folder of a checkpoint, if it is in one and no other process writes there."""
        folder = folder_of(checkpoint)
        if folder is not None and folder.is_dir() and not self.options.fast_dev_run:
            self._hold(folder)
            on_rank_0(self.fabric, partial(check_records, folder))

    def claim(self) -> Path | None:
        """Begin in a new folder, unless there is one."""
        if self.path is not None or self.options.fast_dev_run:
            return self.path
        root = self.options.default_root_dir
        name = self.options.run_name

        def claimed() -> str:
            sweep_runs(root)
            return str(claim_folder(root, name))

        self._hold(Path(str(on_rank_0(self.fabric, claimed))))
        return self.path

    def _hold(self, folder: Path) -> None:
        def lock() -> None:
            self._lock = lock_folder(folder)
            sweep(folder)

        on_rank_0(self.fabric, lock)
        self.path = folder

    def release(self) -> None:
        """Release the lock."""
        if self._lock is not None:
            self._lock.close()


def fresh_state(fabric: Fabric, model: FederatedModule, data: FederatedData, options: Options) -> FederationState:
    """The state before the first round, the same on every process."""
    sweep_left_behind()
    fabric.setup_module(model)
    layout = layout_for(model, data, fabric, options.fast)
    set_fast(model, options.fast, layout)
    state = FederationState(fabric, model, data, options, layout)
    state.synchronise()
    return state


def set_fast(module: FederatedModule, fast: bool, layout: torch.memory_format = torch.channels_last) -> None:
    """Switch fast mode of a method and its parts, with images in this layout."""
    was_fast = module.fast
    for part in module.modules():
        if isinstance(part, FederatedModule):
            part.fast = fast
    if fast or was_fast:
        lay_out(module, layout if fast else torch.contiguous_format)
