"""Before the first round, on every process: the data, the checkpoint that is meant, and the folder of the run."""

from pathlib import Path

from lightning.fabric import Fabric

from fedlit.bounds import check_kind
from fedlit.data import FederatedData
from fedlit.engine.layout import layout_for
from fedlit.engine.options import Options
from fedlit.engine.precision import check_precision
from fedlit.engine.processes import broadcast, meet
from fedlit.engine.rendezvous import ClientParallelStrategy
from fedlit.engine.state import FederationState
from fedlit.fast.memory import set_fast
from fedlit.methods.base import FederatedModule
from fedlit.records.run_folder import find_checkpoint, run_folder


def ready_data(fabric: Fabric, datamodule: FederatedData | None) -> FederatedData:
    """The data, set up on every process, and fetched by the first."""
    data = FederatedData() if datamodule is None else datamodule
    check_kind("data", data, FederatedData, "a FederatedData")
    if not fabric._launched:
        if isinstance(fabric.strategy, ClientParallelStrategy):
            fabric.strategy.prepare_meeting()
        fabric.launch()
    check_precision(fabric)
    if fabric.is_global_zero:
        data.prepare_data()
    meet(fabric)
    data.setup()
    return data


def chosen_checkpoint(fabric: Fabric, ckpt_path: str | None, root: Path, training: bool) -> Path | None:
    """The first process says which: another might find the folder that the first is about to claim."""
    found = find_checkpoint(ckpt_path, root, may_begin=training)
    told = broadcast(fabric, None if found is None else str(found))
    return None if told is None else Path(told)


def chosen_folder(fabric: Fabric, path: Path | None, options: Options, training: bool) -> Path | None:
    """The folder of the checkpoint's run, or a new one to train in; none in a development run."""
    if options.fast_dev_run:
        return None
    root = options.default_root_dir if training and fabric.is_global_zero else None
    told = broadcast(fabric, run_folder(path, root))
    return None if told is None else Path(told)


def fresh_state(fabric: Fabric, model: FederatedModule, data: FederatedData, options: Options) -> FederationState:
    """The state before the first round, the same on every process."""
    fabric.setup_module(model)
    layout = layout_for(model, data, fabric, options.fast)
    set_fast(model, options.fast, layout)
    state = FederationState(fabric, model, data, options, layout)
    state.synchronise()
    return state
