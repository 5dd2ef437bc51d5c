"""Checks of method, data and options together, before the first round."""

import warnings

from lightning.fabric import Fabric

from fedlit.data import FederatedData
from fedlit.engine.aggregation import check_aggregator, check_privacy, check_server_optimizer
from fedlit.engine.child_process import check_timeout
from fedlit.engine.encoding import check_upload_encoder
from fedlit.engine.live_module import left_in_evaluation
from fedlit.engine.network_checks import check_clients, check_measures
from fedlit.engine.options import Options
from fedlit.methods.base import FederatedModule, check_travels
from fedlit.methods.factories import check_choices
from fedlit.methods.hooks import Command, check_hooks
from fedlit.methods.stage import Stage, check_stages, with_followers
from fedlit.notices import Notice


def check_experiment(
    command: Command, model: FederatedModule, data: FederatedData, options: Options, fabric: Fabric
) -> list[Stage]:
    """Method, data and federation together, for what the federation is asked to do; the method's stages."""
    if not isinstance(model, FederatedModule):
        raise ValueError(f"`model` must be a FederatedModule, got a {type(model).__name__}.")
    if options.min_clients > data.num_clients:
        raise ValueError(
            f"`trainer.min_clients` is {options.min_clients}, but `data.num_clients` is {data.num_clients}."
        )
    check_timeout(options.client_timeout, options.num_threads, fabric.device)
    check_choices("trainer.client_epochs", dict(options.client_epochs), data.num_clients)
    model.check(data)
    check_travels(model)
    stages = model.configure_stages()
    check_stages(stages, model, data)
    measures = check_measures(model, stages, options)
    check_hooks(model, with_followers(stages), command)
    if command == "fit":
        _warn_of_modes(model)
        _warn_of_unused_options(model, stages, options)
        data.warn_of_missing_rows()
    check_aggregator(model, stages, data, options)
    if command == "fit":
        check_privacy(model, stages, data, options)
        check_server_optimizer(model, stages, options)
        check_upload_encoder(model, stages, options)
    check_clients(model, data, fabric, measures)
    if measures.are_of_classes:
        data.warn_of_labels()
    return stages


def _warn_of_unused_options(model: FederatedModule, stages: list[Stage], options: Options) -> None:
    """Warn of local epochs or steps where every stage has its own."""
    if any(stage.epochs is None and stage.side == "clients" for stage in stages):
        return
    for name in ("local_epochs", "local_steps", "client_epochs"):
        if getattr(options, name):
            message = f"`trainer.{name}` plays no part: {type(model).__name__} has options of its own for epochs."
            warnings.warn(message, Notice, stacklevel=2)


def _warn_of_modes(model: FederatedModule) -> None:
    """Warn of parts in evaluation mode, in which some libraries return their networks."""
    found = left_in_evaluation(model)
    if found:
        names = ", ".join(name or "all of it" for name in found[:3])
        if len(found) > 3:
            names += " ..."
        message = f"`model`: {type(model).__name__} is trained with parts in evaluation mode, as it was made: {names}."
        warnings.warn(message, Notice, stacklevel=2)
