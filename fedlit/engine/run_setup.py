"""Before the first round: the data, the checkpoint that is meant, and the folder of the run."""

import os
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric

from fedlit.bounds import check_kind
from fedlit.data import FederatedData
from fedlit.data.remote import placeholder_data
from fedlit.engine.checks import layout_for
from fedlit.engine.liveness import ClientParallelStrategy
from fedlit.engine.options import Options, first_line
from fedlit.engine.precision import check_precision
from fedlit.engine.processes import barrier, broadcast
from fedlit.engine.state import FederationState
from fedlit.fast.memory import keep_large_blocks, lay_out
from fedlit.methods.base import FederatedModule
from fedlit.notices import Notice
from fedlit.records.checkpoint import load_last
from fedlit.records.choices import Change
from fedlit.records.reading import check_records
from fedlit.records.run_folder import claim_folder, find_checkpoint, folder_of, lock_folder, sweep, sweep_runs


def title_of(state: FederationState) -> str:
    """The method and its data, for pictures."""
    return f"{type(state.module).__name__} on {state.data.describe()}"


@dataclass
class ResumePoint:
    """The checkpoint that a command begins from, if any."""

    checkpoint: Path | None = None
    content: dict[str, Any] = field(default_factory=dict)
    fallback: str | None = None  # why it is not the file that was meant
    changes: list[Change] = field(default_factory=list)  # of options since the rounds before


def read_checkpoint(path: Path | None) -> ResumePoint:
    """Read a checkpoint; where `last.ckpt` is damaged, warn and read the one before it."""
    if path is None:
        return ResumePoint()
    content, checkpoint, fallback = load_last(path)
    if fallback is not None:
        message = f"{fallback}; going back to {checkpoint.name}, of round {content['round']}."
        warnings.warn(message, Notice, stacklevel=2)
    return ResumePoint(checkpoint, content, fallback)


def launch(fabric: Fabric, options: Options) -> None:
    """Set what holds for a whole process, and start all processes, unless they run already."""
    torch.set_num_threads(options.num_threads)
    if options.deterministic is not None:  # as Lightning's Trainer
        torch.use_deterministic_algorithms(bool(options.deterministic), warn_only=options.deterministic == "warn")
    if options.deterministic:
        torch.backends.cudnn.benchmark = False  # it picks algorithms by how long they take
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS reads it when it is first used
    keep_large_blocks()
    if not fabric._launched:
        try:
            fabric.launch()
        except BaseException:  # a signal, for one; the children would wait for this process
            if isinstance(fabric.strategy, ClientParallelStrategy):
                fabric.strategy.end_children()
            raise
    check_precision(fabric)


def ready_data(fabric: Fabric, datamodule: FederatedData | None, resume_point: ResumePoint) -> FederatedData:
    """The data, set up on every process, and fetched by the first.

    Where they are not there, what the checkpoint knows of them: enough to use its networks.
    """
    kept = resume_point.content.get("preprocessing") if fabric.world_size == 1 else None
    if datamodule is None and kept is not None:
        return placeholder_data(kept, None)
    data = FederatedData() if datamodule is None else datamodule
    check_kind("data", data, FederatedData, "a FederatedData")
    try:
        if fabric.is_global_zero:
            data.prepare_data()
        barrier(fabric)
        data.setup()
        return data
    except (OSError, ValueError, RuntimeError) as error:
        if kept is None:
            raise
        try:
            placeholder = placeholder_data(kept, data)
        except ValueError:
            raise error from None
        why = f"The data are not there ({first_line(error).rstrip('.')})"
        message = f"{why}; inputs are prepared as in the run of {resume_point.checkpoint}."
        warnings.warn(message, Notice, stacklevel=2)
        return placeholder


def on_rank_0(fabric: Fabric, work: Callable[[], Path | None]) -> Path | None:
    """The path that rank 0 finds, on every rank; if it is refused, all end."""
    found: str | None = None
    refusal: Exception | None = None
    if fabric.is_global_zero:
        try:
            path = work()
            found = None if path is None else str(path)
        except (ValueError, OSError) as error:
            refusal = error
    is_refused, found = broadcast(fabric, [refusal is not None, found])
    if refusal is not None:
        raise refusal
    if is_refused:
        raise SystemExit(2)
    return None if found is None else Path(found)


def chosen_checkpoint(fabric: Fabric, ckpt_path: str | None, options: Options, training: bool) -> Path | None:
    """The checkpoint that rank 0 finds: another rank might find the folder that rank 0 is about to claim."""
    return on_rank_0(fabric, partial(find_checkpoint, ckpt_path, options.default_root_dir, training, options.run_name))


class RunFolder(ExitStack):
    """The folder of a run that trains; as a context, the first process holds its lock. A development run has none."""

    def __init__(self, fabric: Fabric, options: Options) -> None:
        super().__init__()
        self.fabric = fabric
        self.options = options
        self.path: Path | None = None

    def resume(self, checkpoint: Path) -> None:
        """Hold the folder of a checkpoint before anything is read there, if it is in one."""
        folder = folder_of(checkpoint)
        if folder is not None and folder.is_dir() and not self.options.fast_dev_run:
            self.path = on_rank_0(self.fabric, partial(self._hold, folder))

    def claim(self) -> Path | None:
        """Hold a new folder, unless that of a checkpoint is held."""
        if self.path is None and not self.options.fast_dev_run:
            self.path = on_rank_0(self.fabric, self._new)
        return self.path

    def _new(self) -> Path:
        sweep_runs(self.options.default_root_dir)
        return self._hold(claim_folder(self.options.default_root_dir, self.options.run_name))

    def _hold(self, folder: Path) -> Path:
        self.enter_context(lock_folder(folder, is_inherited=False))
        sweep(folder)
        check_records(folder)
        return folder


def fresh_state(fabric: Fabric, model: FederatedModule, data: FederatedData, options: Options) -> FederationState:
    """The state before the first round, the same on every process."""
    fabric.setup_module(model)
    layout = layout_for(model, data, fabric, options.fast)
    if options.fast or model.fast:  # now, or in a fit before
        lay_out(model, layout)
    for part in model.modules():
        if isinstance(part, FederatedModule):
            part.fast = options.fast
    return FederationState(fabric, model, data, options, layout)
