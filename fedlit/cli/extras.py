"""Extras: what not everybody needs is installed by who does, and asked for in one line."""

from importlib.util import find_spec

from fedlit.cli.refusal import refuse

REPORT = ("pandas", "scipy")


def need_report(what: str) -> None:
    """Refuse where the extra `report` is not installed."""
    missing = [name for name in REPORT if find_spec(name) is None]
    if missing:
        refuse(f"{what} needs {', '.join(missing)}: pip install 'fedlit[report]'.")
