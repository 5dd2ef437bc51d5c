"""Whether what a method says of its state can be: every entry travels one way, both or none, and is there at all."""

from fedlit.methods.base import FederatedModule

ONE_PLACE = ("download_only", "upload_only", "server_only")  # an entry is in one of them, and then not shared


def check_travels(model: FederatedModule) -> None:
    """Refuse entries of which two things are said, and one-way names that nothing has."""
    kind = type(model).__name__
    names = list(model.state_dict())
    for declared in ("download_only", "upload_only"):
        for prefix in getattr(model, declared):
            if not any(name.startswith(prefix) for name in names):
                raise ValueError(f"`model`: `{declared}` of {kind} names {prefix!r}, but nothing in its state does.")
    for name in names:
        said = [declared for declared in ONE_PLACE if name.startswith(getattr(model, declared))]
        if model.is_shared(name):
            said.append("shared")
        if len(said) > 1:
            raise ValueError(f"`model`: {name!r} of {kind} is said to be both `{said[0]}` and `{said[1]}`; say one.")
