"""Federated learning for clients that differ, in data, model and objective, as a PyTorch Lightning user expects it.

Public nouns lie here: partition, augment, networks, heads, losses, tasks, aggregation, rng, callbacks, federation, and
the packages data and methods. Behind them: engine runs a method, fast holds its shortcuts, records what a run leaves,
cli the command line.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import fedlit._imports  # noqa: F401  (before anything imports torchmetrics or torchvision)

if TYPE_CHECKING:
    from fedlit.aggregation import Upload
    from fedlit.data import Client, FederatedData
    from fedlit.federation import Federation
    from fedlit.methods import FedAvg, FederatedModule, FedProx, FineTuned, LocalOnly, Stage
    from fedlit.records.reading import read_metrics

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
_MODULES = {
    "Upload": "aggregation",
    "Client": "data",
    "FederatedData": "data",
    "Federation": "federation",
    "read_metrics": "records.reading",
}


def __getattr__(name: str) -> Any:
    """Names and modules are imported when they are first asked for: torch and Lightning take seconds."""
    if name in __all__:
        value = getattr(import_module(f"fedlit.{_MODULES.get(name, 'methods')}"), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'fedlit' has no attribute {name!r}")
    elif find_spec(f"fedlit.{name}") is not None:
        return import_module(f"fedlit.{name}")
    else:
        value = _method(name)
    globals()[name] = value
    return value


def _method(name: str) -> Any:
    """A method, or an error that says where another class is."""
    problem = f"module 'fedlit' has no attribute {name!r}"
    if not name[:1].isupper():  # no class: not worth the import
        raise AttributeError(problem)
    for module in ("methods", "partition", "networks", "heads", "tasks", "augment", "callbacks", "aggregation", "data"):
        value = getattr(import_module(f"fedlit.{module}"), name, None)
        if not getattr(value, "__module__", "").startswith(f"fedlit.{module}"):  # imported there only
            continue
        if module == "methods":
            return value
        raise AttributeError(f"{problem}; it is in fedlit.{module}")
    raise AttributeError(problem)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
