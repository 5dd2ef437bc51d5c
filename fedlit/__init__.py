"""Federated learning for clients that differ, in data, model and objective, as a PyTorch Lightning user expects it.

Public nouns lie here: partition, augment, networks, heads, losses, tasks, aggregation, rng, callbacks, federation, and
the packages data and methods. Behind them: engine runs a method, fast holds its shortcuts, records what a run leaves,
cli the command line.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import fedlit._torchvision  # noqa: F401  (before anything imports torchvision)

if TYPE_CHECKING:
    from fedlit.aggregation import Upload
    from fedlit.data import Client, FederatedData
    from fedlit.federation import Federation
    from fedlit.methods import FedAvg, FederatedModule, FedProx, FineTuned, LocalOnly, Stage
    from fedlit.records.frames import read_metrics

__version__ = "0.2.0"
__all__ = [
    "Client",
    "FedAvg",
    "FedProx",
    "FederatedData",
    "FederatedModule",
    "Federation",
    "FineTuned",
    "LocalOnly",
    "Stage",
    "Upload",
    "read_metrics",
]
_ROOMS = {
    "Upload": "aggregation",
    "Client": "data",
    "FederatedData": "data",
    "Federation": "federation",
    "read_metrics": "records.frames",
}


def __getattr__(name: str) -> Any:
    """Names and modules are imported when they are first asked for: torch and Lightning take seconds."""
    if name not in __all__:
        if name.startswith("_") or find_spec(f"fedlit.{name}") is None:
            raise AttributeError(f"module 'fedlit' has no attribute {name!r}")
        return import_module(f"fedlit.{name}")
    value = getattr(import_module(f"fedlit.{_ROOMS.get(name, 'methods')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
