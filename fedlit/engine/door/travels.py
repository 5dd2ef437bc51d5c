"""Whether what a method says of its state can be: every entry travels one way, both or none, and is there at all."""

from collections.abc import Sequence
from typing import Literal

from fedlit.methods.base import FederatedModule
from fedlit.methods.parts import batch_norm_names
from fedlit.methods.stage import Stage

ONE_PLACE = ("download_only", "upload_only", "server_only")  # an entry is in one of them, and then not shared
DECLARED = ("shared", *ONE_PLACE, "collected")  # attributes of name prefixes


def check_travels(model: FederatedModule) -> None:
    """Refuse names that are not a tuple or that nothing in the state has, and entries of which two things are said."""
    kind = type(model).__name__
    names = list(model.state_dict())
    for declared in DECLARED:
        prefixes = getattr(model, declared)
        if not isinstance(prefixes, tuple) or not all(isinstance(prefix, str) for prefix in prefixes):
            raise ValueError(
                f'`model`: `{declared}` of {kind} must be a tuple of name prefixes, such as ("network.",), '
                f"got {prefixes!r}."
            )
        for prefix in prefixes:
            is_looked_for = prefix and declared != "collected"  # an empty one is everything, be it nothing
            if is_looked_for and not any(name.startswith(prefix) for name in names):
                raise ValueError(f"`model`: `{declared}` of {kind} names {prefix!r}, but nothing in its state does.")
    for name in names:
        said = [declared for declared in ONE_PLACE if name.startswith(getattr(model, declared))]
        if model.is_shared(name):
            said.append("shared")
        if len(said) > 1:
            raise ValueError(f"`model`: {name!r} of {kind} is said to be both `{said[0]}` and `{said[1]}`; say one.")


def has_global_model(model: FederatedModule, stages: Sequence[Stage], batch_norm: Literal["average", "local"]) -> bool:
    """Whether the server holds every value of a stage's global model; else there is none to evaluate."""
    if all(stage.upload == "none" and stage.side == "clients" for stage in stages):
        return False
    stays = batch_norm_names(model) if batch_norm == "local" else set()
    one_way = model.download_only + model.upload_only + model.server_only
    held = set()
    for name, tensor in model.state_dict(keep_vars=True).items():
        if name not in stays and (model.is_shared(name) or name.startswith(one_way)):
            held.add(id(tensor))
    for stage in stages:
        values = (stage.module or model).global_model().state_dict(keep_vars=True).values()
        if values and all(id(value) in held for value in values):
            return True
    return False
